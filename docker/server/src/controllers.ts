// The HTTP API.
import {
  BadRequestException, Body, Controller, Delete, Get, Headers, HttpCode, Inject, Param, Post, Query, Req, Res, ServiceUnavailableException, UnauthorizedException,
  UploadedFiles, UseInterceptors,
} from '@nestjs/common';
import { FilesInterceptor } from '@nestjs/platform-express';
import {
  ApiBearerAuth, ApiBody, ApiConsumes, ApiCreatedResponse, ApiExtraModels, ApiHeader, ApiNoContentResponse, ApiOkResponse, ApiOperation, ApiParam, ApiProduces, ApiQuery,
  ApiTags, getSchemaPath,
} from '@nestjs/swagger';
import type { Request, Response } from 'express';
import type { Redis } from 'ioredis';
import { AuthGuard, COOKIE, Public, Who } from './auth.guard.js';
import type { Config, Identity } from './config.js';
import { AcceptedDto, ExecutionDto, isSafeName, MAX_FILES, RunDto, SessionDto, StatusDto, ThreadDto } from './dto.js';
import { ExecutionsService } from './executions.service.js';
import { sendEvents } from './sse.js';
import { MOST } from './store.js';
import { CONFIG, REDIS } from './tokens.js';
import { Workers } from './workers.js';

const ID = /^[\w.-]{1,128}$/;

function checkId(id: string, what: string): string {
  if (!ID.test(id)) throw new BadRequestException(`${what}: 1 to 128 letters, digits, "_", "-" and "."`);
  return id;
}

@ApiTags('threads')
@ApiBearerAuth()
@Controller('threads')
export class ThreadsController {
  constructor(private readonly executions: ExecutionsService) {}

  @Get()
  @ApiOperation({ summary: "The workspace's threads, the latest first" })
  @ApiOkResponse({ type: [ThreadDto] })
  threads(@Who() who: Identity): Promise<ThreadDto[]> {
    return this.executions.listThreads(who);
  }

  @Post(':id/executions')
  @UseInterceptors(FilesInterceptor('files', MAX_FILES))
  @ApiOperation({ summary: 'Runs code in a thread, after what the thread has already' })
  @ApiExtraModels(RunDto)
  @ApiConsumes('application/json', 'multipart/form-data')
  @ApiBody({ schema: { $ref: getSchemaPath(RunDto) } })
  @ApiCreatedResponse({ type: AcceptedDto })
  async run(
    @Who() who: Identity, @Param('id') id: string, @Body() body: RunDto, @UploadedFiles() uploads: Express.Multer.File[] | undefined,
    @Res({ passthrough: true }) response: Response,
  ): Promise<AcceptedDto> {
    const files = [
      ...(body.files ?? []).map(({ filename, content, mimeType }) => ({ filename, mimeType, content: Buffer.from(content, 'base64') })),
      ...(uploads ?? []).map((file) => ({ filename: file.originalname, mimeType: file.mimetype, content: file.buffer })),
    ];
    const bad = files.find((file) => !isSafeName(file.filename));
    if (bad) throw new BadRequestException('files: each needs a relative path without ".." as its name');
    if (new Set(files.map((file) => file.filename)).size < files.length) throw new BadRequestException('files: two have the same name');
    const { executionId, threadId } = await this.executions.run(who, checkId(id, 'thread id'), { ...body, files });
    response.location(`/executions/${executionId}`);
    return { executionId, threadId, events: `/executions/${executionId}/events` };
  }

  @Get(':id/executions')
  @ApiOperation({ summary: "A thread's last executions, oldest first" })
  @ApiQuery({ name: 'limit', required: false, description: `How many; default 100, at most ${MOST}` })
  @ApiOkResponse({ type: [ExecutionDto] })
  list(@Who() who: Identity, @Param('id') id: string, @Query('limit') limit = '100'): Promise<ExecutionDto[]> {
    if (!/^[1-9]\d{0,2}$/.test(limit) || Number(limit) > MOST) throw new BadRequestException(`limit: a number from 1 to ${MOST}`);
    return this.executions.list(who, checkId(id, 'thread id'), Number(limit));
  }

  @Delete(':id')
  @HttpCode(204)
  @ApiOperation({ summary: 'Cancels what the thread has, ends its sandbox, forgets its executions' })
  @ApiNoContentResponse()
  async remove(@Who() who: Identity, @Param('id') id: string): Promise<void> {
    await this.executions.removeThread(who, checkId(id, 'thread id'));
  }
}

@ApiTags('executions')
@ApiBearerAuth()
@Controller('executions')
export class ExecutionsController {
  constructor(private readonly executions: ExecutionsService) {}

  @Get(':id')
  @ApiOperation({ summary: 'One execution' })
  @ApiOkResponse({ type: ExecutionDto })
  async one(@Who() who: Identity, @Param('id') id: string): Promise<ExecutionDto> {
    return this.executions.describe(await this.executions.find(who, checkId(id, 'execution id')));
  }

  @Get(':id/events')
  @ApiOperation({
    summary: 'Its messages as server-sent events',
    description: 'Event names are the types of include/contract (started, stdout, stderr, result, file, retrying, truncated, heartbeat, done) '
      + 'and `position` while it waits; ids are the seq. Ends after `done`; asked again behind the end the answer is 204.',
  })
  @ApiHeader({ name: 'Last-Event-ID', required: false, description: 'Goes on behind this one' })
  @ApiProduces('text/event-stream')
  async events(@Who() who: Identity, @Param('id') id: string, @Headers('last-event-id') last: string | undefined, @Res() response: Response): Promise<void> {
    const execution = await this.executions.find(who, checkId(id, 'execution id'));
    if (last === 'end') return void response.status(204).end();
    if (last !== undefined && !/^\d{1,15}$/.test(last)) throw new BadRequestException('Last-Event-ID: the id of an event');
    const from = Number(last ?? 0) + 1;
    await sendEvents(response, {
      messages: (signal) => this.executions.follow(execution, from, signal),
      position: () => this.executions.position(execution.executionId),
    });
  }

  @Post(':id/cancel')
  @HttpCode(202)
  @ApiOperation({ summary: 'Cancels it, whether it waits or runs' })
  async cancel(@Who() who: Identity, @Param('id') id: string): Promise<{ executionId: string; state: string }> {
    return { executionId: id, state: await this.executions.cancel(who, checkId(id, 'execution id')) };
  }

  @Get(':id/files/*name')
  @ApiOperation({ summary: 'The bytes of an output file, by its name (with its folders) or its id' })
  @ApiParam({ name: 'name' })
  @ApiProduces('application/octet-stream')
  async file(@Who() who: Identity, @Param('id') id: string, @Param('name') name: string | string[], @Res() response: Response): Promise<void> {
    const { executionId } = await this.executions.find(who, checkId(id, 'execution id'));
    const { file, content } = await this.executions.file(executionId, Array.isArray(name) ? name.join('/') : name);
    send(response, content, file.mimeType, file.filename.slice(file.filename.lastIndexOf('/') + 1));
  }

  @Get(':id/values/:n')
  @ApiOperation({ summary: 'A value of a result that was too large for a message: `refs` has the address' })
  @ApiProduces('application/octet-stream')
  async value(@Who() who: Identity, @Param('id') id: string, @Param('n') n: string, @Res() response: Response): Promise<void> {
    const { executionId } = await this.executions.find(who, checkId(id, 'execution id'));
    if (!/^\d{1,6}$/.test(n)) throw new BadRequestException('value: a number');
    send(response, await this.executions.value(executionId, Number(n)), 'application/octet-stream', `value-${n}`);
  }
}

// Bytes from a sandbox: nothing that a browser would run or show as a page of ours.
function send(response: Response, content: Buffer, type: string, name: string): void {
  response.attachment(name).set({
    'Content-Type': /^[\w.+-]+\/[\w.+-]+$/.test(type) ? type : 'application/octet-stream',
    'Content-Security-Policy': "default-src 'none'; frame-ancestors 'none'; sandbox",
    'Cross-Origin-Resource-Policy': 'same-origin', 'Cache-Control': 'private, no-store',
  });
  response.end(content);
}

@ApiTags('server')
@Controller()
export class ServerController {
  constructor(
    @Inject(CONFIG) private readonly config: Config, @Inject(REDIS) private readonly redis: Redis, private readonly workers: Workers,
    private readonly guard: AuthGuard,
  ) {}

  @Public()
  @Get('health')
  @ApiOperation({ summary: 'Is the server well: 200 or 503' })
  async health(): Promise<{ status: string }> {
    if ((await this.redis.ping().catch(() => '')) !== 'PONG') throw new ServiceUnavailableException('Redis does not answer');
    return { status: 'ok' };
  }

  @Public()
  @Get('status')
  @ApiOperation({ summary: 'Is there a worker that runs code: whether to offer it at all' })
  @ApiOkResponse({ type: StatusDto })
  async status(@Req() request: Request & { identity?: Identity }): Promise<StatusDto> {
    const replicas = await this.workers.replicas();
    const workspaceId = request.identity?.workspaceId ?? null;
    return {
      ...Workers.judge(replicas), development: this.config.developer !== null, workspaceId,
      replicas: workspaceId === null ? [] : replicas,
    };
  }

  @Public()
  @Post('session')
  @HttpCode(204)
  @ApiOperation({ summary: 'Puts a token into a cookie, for a page: EventSource sends no other header' })
  login(@Body() { token }: SessionDto, @Res({ passthrough: true }) response: Response): void {
    if (!this.config.developer && !this.guard.identityOf(token)) throw new UnauthorizedException('not a token of this server');
    response.cookie(COOKIE, token, { httpOnly: true, sameSite: 'strict', secure: this.config.secureCookie, path: '/' });
  }

  @Public()
  @Delete('session')
  @HttpCode(204)
  @ApiOperation({ summary: 'Takes the cookie away' })
  logout(@Res({ passthrough: true }) response: Response): void {
    response.clearCookie(COOKIE, { httpOnly: true, sameSite: 'strict', secure: this.config.secureCookie, path: '/' });
  }
}
