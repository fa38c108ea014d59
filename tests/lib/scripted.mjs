// The language of the SCRIPTED driver (test builds): a job's code is one JSON object a line.
//
// Before delivery: {"fail": "no_sandbox"|"no_capacity"|"driver_error", "times": k}, {"prepare": ms}.
// Then, in order:  {"sleep": ms} {"stdout": text, "times": n} {"stderr": text} {"result": bundle, "main": bool}
//                  {"file": path, "content"|"base64": text} {"state": name} {"error": {name, value, traceback}}
//                  {"exit": n} {"die": signal} {"oom": true} {"lost": true} {"unknown": true} {"hang": true}
//                  {"resist": true} (then the interrupt is ignored and the run must be killed)
// A `fail` counts the job's attempts on one replica.

/** The code of a run that does these steps. */
export function script(...steps) {
  return steps.map((step) => JSON.stringify(step)).join('\n');
}

export const say = (text, times) => (times === undefined ? { stdout: text } : { stdout: text, times });
export const wait = (ms) => ({ sleep: ms });
export const fail = (reason, times) => ({ fail: reason, times });
export const raise = (name = 'ValueError', value = 'bad', traceback = `Traceback\n${name}: ${value}`) =>
  ({ error: { name, value, traceback } });
