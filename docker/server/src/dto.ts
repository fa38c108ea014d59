// What comes in and what goes out, with its rules and its place in the OpenAPI page.
import { ApiProperty, ApiPropertyOptional } from '@nestjs/swagger';
import { Transform, Type } from 'class-transformer';
import {
  ArrayMaxSize, IsArray, IsBase64, IsInt, IsNotEmpty, IsObject, IsOptional, IsString, Matches, MaxLength, Min, registerDecorator,
  ValidateNested,
} from 'class-validator';

export const MAX_FILES = 20;
const NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

/** A relative path without ways out: what the worker accepts. */
export function isSafeName(name: unknown): name is string {
  return typeof name === 'string' && name.length > 0 && Buffer.byteLength(name) <= 1024 && !/[\0-\x1f\x7f\\]/.test(name)
    && !name.startsWith('/') && name.split('/').every((part) => part !== '' && part !== '.' && part !== '..' && Buffer.byteLength(part) <= 255);
}

function IsFileName() {
  return (object: object, propertyName: string) => registerDecorator({
    name: 'isFileName', target: object.constructor, propertyName,
    options: { message: 'filename must be a relative path without "..", backslashes or control characters' },
    validator: { validate: isSafeName },
  });
}

function IsEnvironment() {
  return (object: object, propertyName: string) => registerDecorator({
    name: 'isEnvironment', target: object.constructor, propertyName,
    options: { message: 'env must be an object of strings, with names of letters, digits and _' },
    validator: {
      validate: (value: unknown) => typeof value === 'object' && value !== null && !Array.isArray(value)
        && Object.entries(value).every(([name, text]) => NAME.test(name) && typeof text === 'string' && !text.includes('\0')),
    },
  });
}

// In a form everything is text; in JSON a number stays what it is.
const fromText = ({ value }: { value: unknown }) => {
  if (typeof value !== 'string') return value;
  try {
    return JSON.parse(value) as unknown;
  } catch {
    return value;
  }
};

export class InputFileDto {
  @ApiProperty({ description: 'Path under /home/user', example: 'data.csv' })
  @IsFileName()
  filename!: string;

  @ApiProperty({ description: 'The bytes in base64' })
  @IsBase64({}, { message: 'content must be base64' })
  content!: string;

  @ApiPropertyOptional()
  @IsOptional()
  @IsString()
  @MaxLength(255)
  mimeType?: string;
}

export class RunDto {
  @ApiProperty({ description: 'What to run', example: 'print(6 * 7)' })
  @IsString()
  @IsNotEmpty()
  @MaxLength(500_000)
  code!: string;

  @ApiPropertyOptional({ description: 'python, or another kernel that the worker has', default: 'python' })
  @IsOptional()
  @Matches(/^[\w+#.-]{1,64}$/)
  language?: string;

  @ApiPropertyOptional({ description: 'Longest run in ms; the worker has a limit of its own' })
  @IsOptional()
  @Transform(fromText)
  @IsInt()
  @Min(1)
  timeoutMs?: number;

  @ApiPropertyOptional({ description: 'Environment variables of this run (in a form: as JSON)', type: Object, additionalProperties: { type: 'string' } })
  @IsOptional()
  @Transform(({ value, ...rest }) => fromText({ value, ...rest }))
  @IsObject({ message: 'env must be an object of strings' })
  @IsEnvironment()
  env?: Record<string, string>;

  @ApiPropertyOptional({ description: 'Files for /home/user (in a form: parts named `files`)', type: [InputFileDto] })
  @IsOptional()
  @IsArray()
  @ArrayMaxSize(MAX_FILES)
  @ValidateNested({ each: true })
  @Type(() => InputFileDto)
  files?: InputFileDto[];
}

export class SessionDto {
  @ApiProperty({ description: 'One of SERVER_TOKENS' })
  @IsString()
  @MaxLength(1000)
  token!: string;
}


export class AcceptedDto {
  @ApiProperty() executionId!: string;
  @ApiProperty() threadId!: string;
  @ApiProperty({ description: 'Where to listen' }) events!: string;
}

export class FileDto {
  @ApiProperty() fileId!: string;
  @ApiProperty() filename!: string;
  @ApiProperty() mimeType!: string;
  @ApiProperty() size!: number;
  @ApiProperty({ description: 'Where to get it' }) url!: string;
}

export class ExecutionDto {
  @ApiProperty() executionId!: string;
  @ApiProperty() threadId!: string;
  @ApiProperty() code!: string;
  @ApiProperty() language!: string;
  @ApiProperty({ description: 'Names of its input files', type: [String] }) inputs!: string[];
  @ApiProperty({ description: 'ms since 1970' }) createdAt!: number;
  @ApiProperty({ description: 'Who ran it' }) userId!: string;
  @ApiProperty({ enum: ['waiting', 'running', 'completed', 'error', 'failed', 'gone'] })
  state!: 'waiting' | 'running' | 'completed' | 'error' | 'failed' | 'gone';
  @ApiProperty({ description: 'Jobs of its thread that come before it' }) ahead!: number;
  @ApiPropertyOptional({ description: "The worker's result, once there is one", type: Object }) result?: Record<string, unknown>;
  @ApiPropertyOptional() error?: string;
}

export class ThreadDto {
  @ApiProperty() threadId!: string;
  @ApiProperty({ description: 'First line of its first code' }) title!: string;
  @ApiProperty() executions!: number;
  @ApiProperty({ description: 'ms since 1970' }) updatedAt!: number;
}

export class ReplicaDto {
  @ApiProperty() id!: string;
  @ApiProperty() driver!: string;
  @ApiProperty() enabled!: boolean;
  @ApiProperty() why!: string;
  @ApiProperty() running!: number;
  @ApiProperty() draining!: boolean;
  @ApiProperty() version!: string;
}

export class StatusDto {
  @ApiProperty({ description: 'Is there a worker that runs code' }) enabled!: boolean;
  @ApiProperty({ description: 'Why not, one sentence' }) why!: string;
  @ApiProperty({ description: 'Nobody needs a token' }) development!: boolean;
  @ApiProperty({ description: 'The workspace that was seen, null without a token', nullable: true, type: String }) workspaceId!: string | null;
  @ApiProperty({ type: [ReplicaDto] }) replicas!: ReplicaDto[];
}
