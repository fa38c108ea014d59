// The server's settings, all from the environment; a wrong one is an error that names it.
import { readFileSync } from 'node:fs';

export interface Identity {
  workspaceId: string;
  userId: string;
}

export interface Config {
  redisUrl: string;
  prefix: string;
  queueName: string;
  host: string;
  port: number;
  /** Bearer token -> who that is. Empty: development mode, where everybody is `developer`. */
  tokens: Map<string, Identity>;
  developer: Identity | null;
  /** Host names by which development mode may be addressed. */
  allowedHosts: string[];
  /** What is put into the worker's settings:runtime. */
  runtimeSettings: Record<string, string>;
  /** How long lists of threads and executions are kept, ms. */
  historyTtlMs: number;
  /** How long input files wait in Redis for their run, ms. */
  inputTtlMs: number;
  /** All input files of an execution, together. */
  inputMaxBytes: number;
  secureCookie: boolean;
}

// Settings of the worker that the server, where they are set, decides for all replicas.
const published = [
  'CODE_INTERPRETER_TYPE', 'CODE_INTERPRETER_TIMEOUT_MS', 'CODE_INTERPRETER_IDLE_TIMEOUT_MS', 'CODE_INTERPRETER_SESSION_MAX_AGE_MS',
];
const ID = /^[\w.-]{1,128}$/;

type Environment = Record<string, string | undefined>;

export function loadConfig(env: Environment = process.env): Config {
  const tokens = parseTokens(secret(env, 'SERVER_TOKENS'));
  const development = env.NODE_ENV === 'development';
  if (tokens.size === 0 && !development) {
    throw new Error('SERVER_TOKENS is empty: set token=workspace[:user],... (or NODE_ENV=development, where nobody needs one)');
  }
  return {
    redisUrl: secret(env, 'REDIS_QUEUE_URL') || secret(env, 'REDIS_URL') || 'redis://127.0.0.1:6379',
    prefix: env.QUEUE_PREFIX || 'bull',
    queueName: env.QUEUE_NAME || 'code-interpreter',
    host: env.HOST || (tokens.size ? '0.0.0.0' : '127.0.0.1'),
    port: integer(env, 'PORT', 3000, 0, 65535),
    tokens,
    developer: tokens.size ? null : { workspaceId: 'dev', userId: 'developer' },
    allowedHosts: list(env.SERVER_ALLOWED_HOSTS ?? 'localhost,127.0.0.1,[::1]'),
    runtimeSettings: runtimeSettings(env),
    historyTtlMs: integer(env, 'SERVER_HISTORY_TTL_MS', 86_400_000, 1000, 30 * 86_400_000),
    inputTtlMs: integer(env, 'SERVER_INPUT_TTL_MS', 6 * 3_600_000, 1000, 7 * 86_400_000),
    inputMaxBytes: integer(env, 'SERVER_INPUT_MAX_BYTES', 32 * 1024 * 1024, 1, 512 * 1024 * 1024),
    secureCookie: env.SERVER_SECURE_COOKIE === undefined ? !development : env.SERVER_SECURE_COOKIE === 'true',
  };
}

/** NAME, or the content of the file that NAME_FILE names. */
function secret(env: Environment, name: string): string {
  const path = env[`${name}_FILE`];
  return path ? readFileSync(path, 'utf8').trim() : (env[name] ?? '');
}

const list = (text: string) => text.split(/[,\n]/).map((part) => part.trim()).filter(Boolean);

function parseTokens(text: string): Map<string, Identity> {
  const tokens = new Map<string, Identity>();
  for (const part of list(text)) {
    const match = /^(.+)=([^=:]+)(?::([^=:]+))?$/.exec(part);
    if (!match || !ID.test(match[2]) || (match[3] !== undefined && !ID.test(match[3]))) {
      throw new Error('SERVER_TOKENS: each entry is token=workspace or token=workspace:user'); // never the entry: it is secret
    }
    if (match[1].length < 16) throw new Error('SERVER_TOKENS: a token has at least 16 characters');
    tokens.set(match[1], { workspaceId: match[2], userId: match[3] ?? 'anonymous' });
  }
  return tokens;
}

function integer(env: Environment, name: string, fallback: number, least: number, most: number): number {
  const text = env[name];
  if (text === undefined || text === '') return fallback;
  const value = Number(text);
  if (!Number.isInteger(value) || value < least || value > most) throw new Error(`${name} must be an integer from ${least} to ${most}`);
  return value;
}

// SERVER_PUBLISH names the settings (none: an empty one); each is published when it is set here.
function runtimeSettings(env: Environment): Record<string, string> {
  const names = env.SERVER_PUBLISH === undefined ? published : list(env.SERVER_PUBLISH);
  const entries = names.map((name) => [name, secret(env, name)]).filter(([, value]) => value !== '');
  return Object.fromEntries(entries);
}
