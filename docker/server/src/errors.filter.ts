// Errors that are not the client's: Redis away is 503, all else 500, and the log has it.
import { type ArgumentsHost, Catch, HttpException, Logger } from '@nestjs/common';
import { BaseExceptionFilter } from '@nestjs/core';
import type { Response } from 'express';

const away = /timed out|Connection is closed|ECONNREFUSED|ECONNRESET|max retries|^(LOADING|READONLY|OOM|MASTERDOWN|CLUSTERDOWN|TRYAGAIN)\b/i;

@Catch()
export class ErrorsFilter extends BaseExceptionFilter {
  private readonly logger = new Logger(ErrorsFilter.name);

  override catch(error: unknown, host: ArgumentsHost): void {
    const response = host.switchToHttp().getResponse<Response>();
    if (error instanceof HttpException && !response.headersSent) return super.catch(error, host);
    const { message, stack, status } = error as Error & { status?: number };
    if (response.headersSent) {
      this.logger.error(stack ?? message);
      response.destroy();
      return;
    }
    // What the body parser throws: 400 and 413 with their own words.
    if (typeof status === 'number' && status >= 400 && status < 500) {
      response.status(status).json({ statusCode: status, message });
      return;
    }
    this.logger.error(stack ?? message);
    const unavailable = away.test(message);
    const text = unavailable ? 'Redis does not answer, or takes nothing now: try again' : 'Internal server error';
    response.status(unavailable ? 503 : 500).json({ statusCode: unavailable ? 503 : 500, message: text });
  }
}
