// Makes contract.d.ts from the JSON Schema of the contract: node generate.mjs [--check]
import { readFileSync, writeFileSync } from 'node:fs';

const source = new URL('../../include/contract/v1.schema.json', import.meta.url);
const target = new URL('contract.d.ts', import.meta.url);
const names = { file: 'OutputFile', inputFile: 'InputFile', output: 'Output', result: 'Result', replyMessage: 'ReplyMessage' };
const silent = new Set(['$schema', '$id', 'title', 'description', 'default', 'minLength', 'minimum', 'minProperties', 'format',
  'pattern', 'contentEncoding', 'propertyNames', 'allOf', 'required', 'properties', 'additionalProperties', 'items', 'type']);

const nameOf = (def, schema) => schema.title?.replace(/\W/g, '') ?? names[def] ?? def[0].toUpperCase() + def.slice(1);
const comment = (schema, indent) => (schema.description ? `${indent}/** ${schema.description.replaceAll('*/', '* /')} */\n` : '');

/** A schema as a TypeScript type. Throws on a keyword it does not know: better than a type that is not true. */
function typeOf(schema, defs, indent = '') {
  for (const key of Object.keys(schema)) {
    if (!silent.has(key) && !['$ref', 'enum', 'const', 'oneOf', 'anyOf'].includes(key)) throw new Error(`unknown keyword ${key}`);
  }
  if (schema.$ref) {
    const def = schema.$ref.replace('#/$defs/', '');
    return nameOf(def, defs[def]);
  }
  if ('const' in schema) return literal(schema.const);
  if (schema.enum) return schema.enum.map(literal).join(' | ');
  if (schema.oneOf && !schema.properties) return schema.oneOf.map((one) => typeOf(one, defs, indent)).join(' | ');
  const types = [schema.type].flat();
  return types.map((type) => simple(type, schema, defs, indent)).join(' | ');
}

const literal = (value) => (typeof value === 'string' ? `'${value}'` : String(value));

function simple(type, schema, defs, indent) {
  if (type === 'integer') return 'number';
  if (type === 'array') return `Array<${typeOf(schema.items, defs, indent)}>`;
  if (type !== 'object') return type;
  if (!schema.properties) return `Record<string, ${map(schema.additionalProperties, defs, indent)}>`;
  const body = fields(schema, defs, indent);
  const choice = schema.oneOf ?? schema.anyOf;
  return choice ? `${body} & ${alternatives(choice)}` : body;
}

const map = (values, defs, indent) => (values && values !== true ? typeOf(values, defs, indent) : 'unknown');

function fields(schema, defs, indent) {
  const inner = `${indent}  `;
  const lines = Object.entries(schema.properties).map(([name, one]) => {
    const optional = schema.required?.includes(name) ? '' : '?';
    return `${comment(one, inner)}${inner}${name}${optional}: ${typeOf(one, defs, inner)};`;
  });
  return `{\n${lines.join('\n')}\n${indent}}`;
}

// Which fields must be there, of several ways.
function alternatives(choice) {
  return `(${choice.map(({ required }) => `{ ${required.map((name) => `${name}: unknown`).join('; ')} }`).join(' | ')})`;
}

function generate() {
  const { $defs: defs } = JSON.parse(readFileSync(source));
  const parts = Object.entries(defs).map(([def, schema]) =>
    `${comment(schema, '')}export type ${nameOf(def, schema)} = ${typeOf(schema, defs)};\n`);
  return `// The contract's types, made from include/contract/v1.schema.json by generate.mjs: change that, not this.\n\n${parts.join('\n')}`;
}

const text = generate();
if (process.argv[2] !== '--check') writeFileSync(target, text);
else if (readFileSync(target, 'utf8') !== text) {
  console.error('contract.d.ts is not what the schema says: run `node docker/client/generate.mjs`');
  process.exitCode = 1;
}
