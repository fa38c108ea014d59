// The workers as Redis shows them, and the settings that the server gives them.
import type { Redis } from 'ioredis';
import type { ReplicaDto } from './dto.js';

const MOST = 200; // replicas that are looked at

export class Workers {
  constructor(private readonly redis: Redis, private readonly prefix: string) {}

  async replicas(): Promise<ReplicaDto[]> {
    // The hash of one that is gone has expired; no clock but Redis's is asked.
    const ids = await this.redis.zrevrange(`${this.prefix}index:replicas`, 0, MOST - 1);
    const hashes = await Promise.all(ids.map((id) => this.redis.hgetall(`${this.prefix}replica:${id}`)));
    return hashes.map((hash, i) => ({ ...hash, id: ids[i] }) as Record<string, string>).filter((hash) => hash.driver !== undefined)
      .map(({ id, driver, enabled, why, running, draining, version }) => ({
        id, driver, enabled: enabled === '1', why: why ?? '', running: Number(running), draining: draining === '1', version: version ?? '',
      }));
  }

  /** Is there a worker that would run code, and if not, why. */
  static judge(replicas: ReplicaDto[]): { enabled: boolean; why: string } {
    if (replicas.length === 0) return { enabled: false, why: 'No worker is running.' };
    const able = replicas.filter((one) => one.enabled);
    if (able.length > 0) return { enabled: true, why: '' };
    return { enabled: false, why: replicas.find((one) => one.why)?.why ?? 'The workers have code execution switched off.' };
  }

  /** Gives these settings to every replica; their next job has them. Others in the hash stay. */
  async publish(settings: Record<string, string>): Promise<void> {
    if (Object.keys(settings).length > 0) await this.redis.hset(`${this.prefix}settings:runtime`, settings);
  }
}
