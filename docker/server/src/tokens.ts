// Names of what is injected and has no class of ours.
export const CONFIG = Symbol('config');
export const REDIS = Symbol('redis');
export const DRIVER = Symbol('code interpreter driver');
