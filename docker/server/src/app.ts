// Makes the application: parsers, validation, headers, OpenAPI page, static files.
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ValidationPipe } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import type { NestExpressApplication } from '@nestjs/platform-express';
import { DocumentBuilder, SwaggerModule } from '@nestjs/swagger';
import type { NextFunction, Request, Response } from 'express';
import { AppModule } from './app.module.js';
import { AuthGuard } from './auth.guard.js';
import type { Config } from './config.js';

const SMALL = 10_000; // bytes
const PAGE_CSP = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
  + "font-src 'self'; frame-src 'self' data: blob:; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const DOCS_CSP = "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'";

function headers(request: Request, response: Response, next: NextFunction): void {
  response.set({
    'X-Content-Type-Options': 'nosniff', 'Referrer-Policy': 'no-referrer', 'X-Frame-Options': 'DENY', 'Cross-Origin-Opener-Policy': 'same-origin',
    'Content-Security-Policy': request.path.startsWith('/docs') ? DOCS_CSP : PAGE_CSP,
  });
  next();
}

// Bodies are read before guards are asked: nobody unknown gets a large one into memory, nobody one of unknown length.
function bouncer(guard: AuthGuard, limit: number) {
  return (request: Request, response: Response, next: NextFunction) => {
    const length = Number(request.headers['content-length'] ?? 0);
    const refuse = (statusCode: number, message: string) => response.status(statusCode).set('Connection', 'close').json({ statusCode, message });
    if (request.headers['transfer-encoding'] !== undefined) refuse(411, 'a Content-Length is needed');
    else if (length > SMALL && !guard.identify(request)) refuse(401, 'a bearer token is needed: Authorization: Bearer <token>');
    else if (length > limit) refuse(413, `at most ${limit} bytes`);
    else next();
  };
}

export async function createApp(config: Config): Promise<NestExpressApplication> {
  const app = await NestFactory.create<NestExpressApplication>(AppModule.forRoot(config), { bodyParser: false, forceCloseConnections: true });
  app.disable('x-powered-by');
  app.use(headers);
  // Base64 is a third longer than its bytes; the code comes beside it.
  const limit = Math.ceil(config.inputMaxBytes * 1.4) + 1_000_000;
  app.use(bouncer(app.get(AuthGuard), limit));
  app.useBodyParser('json', { limit });
  app.useGlobalPipes(new ValidationPipe({ whitelist: true, forbidNonWhitelisted: true, transform: true }));
  app.useStaticAssets(fileURLToPath(new URL('../public', import.meta.url)), { maxAge: 0, dotfiles: 'deny' });
  // The page's one library, served from where npm put it.
  app.useStaticAssets(dirname(fileURLToPath(import.meta.resolve('ansi_up'))), { prefix: '/vendor', maxAge: 0, extensions: ['js'], index: false });
  const document = new DocumentBuilder().setTitle('Sandpiper server').setVersion('1').addBearerAuth()
    .setDescription('Runs code of conversations: one thread, one warm kernel, one run at a time.').build();
  SwaggerModule.setup('docs', app, () => SwaggerModule.createDocument(app, document), { jsonDocumentUrl: 'docs/openapi.json' });
  app.enableShutdownHooks();
  return app;
}
