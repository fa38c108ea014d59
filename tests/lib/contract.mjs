// Checks messages and results against include/contract/v1.schema.json.
import { readFileSync } from 'node:fs';
import Ajv2020 from 'ajv/dist/2020.js';

const schema = JSON.parse(readFileSync(new URL('../../include/contract/v1.schema.json', import.meta.url)));
const ajv = new Ajv2020.default({ allErrors: true, strict: true, strictRequired: false, allowUnionTypes: true });
ajv.addFormat('uuid', /^[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
ajv.addSchema(schema, 'v1');

const byType = {
  started: 'started', stdout: 'stdout', stderr: 'stderr', result: 'resultMessage', file: 'fileMessage',
  retrying: 'retrying', heartbeat: 'heartbeat', truncated: 'truncated', done: 'done',
};

function check(def, value, what) {
  const validate = ajv.getSchema(`v1#/$defs/${def}`);
  if (validate(value)) return value;
  const errors = validate.errors.map((e) => `${e.instancePath || '/'} ${e.message} ${JSON.stringify(e.params)}`);
  throw new Error(`${what} breaks the contract: ${errors.join('; ')}\n${JSON.stringify(value).slice(0, 2000)}`);
}

/** Each throws with all violations, or returns its argument. */
export function checkMessage(message) {
  const def = byType[message?.type];
  if (!def) throw new Error(`unknown message type: ${JSON.stringify(message)}`);
  return check(def, message, `message ${message.type}`);
}
export const checkResult = (result) => check('result', result, 'result');
export const checkJobData = (data) => check('jobData', data, 'job data');
