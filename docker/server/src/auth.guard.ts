// Who asks: a bearer token, or the cookie made from one; the workspace comes from here and from nowhere else.
import { createHash } from 'node:crypto';
import { type CanActivate, createParamDecorator, type ExecutionContext, ForbiddenException, Injectable, SetMetadata, UnauthorizedException } from '@nestjs/common';
import { Reflector } from '@nestjs/core';
import type { Request } from 'express';
import type { Config, Identity } from './config.js';

export const COOKIE = 'sandpiper_token';
const PUBLIC = 'public';

/** Routes for everybody. */
export const Public = () => SetMetadata(PUBLIC, true);

/** Who asks, in a handler's arguments. */
export const Who = createParamDecorator((_: unknown, context: ExecutionContext) =>
  (context.switchToHttp().getRequest() as { identity: Identity }).identity);

const digest = (text: string) => createHash('sha256').update(text).digest('base64');

@Injectable()
export class AuthGuard implements CanActivate {
  // By digest: how long a look-up takes says nothing about a token.
  private readonly tokens: Map<string, Identity>;

  constructor(private readonly config: Config, private readonly reflector: Reflector) {
    this.tokens = new Map([...config.tokens].map(([token, identity]) => [digest(token), identity]));
  }

  canActivate(context: ExecutionContext): boolean {
    const request = context.switchToHttp().getRequest<Request & { identity?: Identity }>();
    this.refuseForeign(request);
    request.identity = this.identify(request) ?? undefined;
    if (request.identity || this.reflector.getAllAndOverride<boolean>(PUBLIC, [context.getHandler(), context.getClass()])) return true;
    throw new UnauthorizedException('a bearer token is needed: Authorization: Bearer <token>');
  }

  /** Whose token this is. */
  identityOf(token: string): Identity | null {
    return this.tokens.get(digest(token)) ?? null;
  }

  identify(request: Request): Identity | null {
    if (this.config.developer) return this.config.developer;
    const bearer = /^Bearer +(\S+)$/i.exec(request.headers.authorization ?? '')?.[1];
    const token = bearer ?? cookieOf(request);
    return token ? this.identityOf(token) : null;
  }

  // Another site's page must not use the cookie of a user, or (by whatever name) a developer's machine.
  private refuseForeign(request: Request): void {
    const { host = '', origin } = request.headers;
    if (origin !== undefined && origin.replace(/^https?:\/\//, '') !== host && !['GET', 'HEAD'].includes(request.method)) {
      throw new ForbiddenException('the request comes from another site');
    }
    const name = host.replace(/:\d+$/, '');
    const { developer, allowedHosts } = this.config;
    if (developer && !allowedHosts.includes('*') && !allowedHosts.includes(name)) {
      throw new ForbiddenException(`in development mode this server answers only to ${allowedHosts.join(', ')} (SERVER_ALLOWED_HOSTS)`);
    }
  }
}

function cookieOf(request: Request): string | undefined {
  for (const part of (request.headers.cookie ?? '').split(';')) {
    const [name, value] = part.trim().split('=');
    if (name !== COOKIE || value === undefined) continue;
    try {
      return decodeURIComponent(value);
    } catch {
      return undefined;
    }
  }
  return undefined;
}
