"""bash, JavaScript and TypeScript contexts: one process each, which keeps its state from cell to cell."""

import asyncio
import codecs
import os

import boxes

# Cells come on descriptor 3, each with its length and a word before it; the status of each goes out on 4, and the word
# ends what it wrote on both streams.
BASH = r"""
while read -r -u 3 n word; do
    IFS= LC_ALL=C read -r -N "$n" -u 3 code
    eval "$code" 3<&- 4>&- </dev/null
    status=$?
    printf "\0%s" "$word"
    printf "\0%s" "$word" >&2
    printf "%d\n" $status >&4
done
"""
NODE = r"""
{ // its names are none of the cells'
const fs = require("fs"), vm = require("vm"), { processTopLevelAwait } = require("internal/repl/await");
globalThis.require = require;
globalThis.__load = (name) => import(name);
// Top-level await and imports, as the kernels of E2B's template take them; what is declared stays for later cells.
const IMPORT = /^[ \t]*import[ \t]+(?:(\w+)[ \t]*,?[ \t]*)?(?:\*[ \t]+as[ \t]+(\w+)|(\{[^}]*\}))?[ \t]*from[ \t]+(["'][^"']+["'])/gm;
const loaded = (_, one, all, some, from) => [
    one && `const ${one} = (await __load(${from})).default`, all && `const ${all} = await __load(${from})`,
    some && `const ${some.replace(/\s+as\s+/g, ": ")} = await __load(${from})`].filter(Boolean).join("; ");
const script = (code) => {
    const own = code.replace(IMPORT, loaded);
    return (/\bawait\b/.test(own) && processTopLevelAwait(own)) || own;
};
let rest = Buffer.alloc(0);
const next = async () => {
    for (;;) {
        const at = rest.indexOf(10), [n, word] = at < 0 ? [] : rest.subarray(0, at).toString().split(" ");
        if (at >= 0 && rest.length >= at + 1 + Number(n)) {
            const code = rest.subarray(at + 1, at + 1 + Number(n)).toString();
            rest = rest.subarray(at + 1 + Number(n));
            return [code, word];
        }
        const piece = Buffer.alloc(65536), got = fs.readSync(3, piece);
        if (got === 0) process.exit(0);
        rest = Buffer.concat([rest, piece.subarray(0, got)]);
    }
};
(async () => {
    for (;;) {
        const [code, word] = await next();
        let status = 0;
        try {
            await vm.runInThisContext(script(code));
        } catch (error) {
            process.stderr.write(String(error && error.stack || error) + "\n");
            status = 1;
        }
        for (const stream of [process.stdout, process.stderr]) await new Promise((done) => stream.write("\0" + word, done));
        fs.writeSync(4, status + "\n");
    }
})();
}
"""
PROGRAMS = {
    "bash": ["/bin/bash", "-c", BASH],
    "javascript": ["/usr/bin/node", "--expose-internals", "-e", NODE],
    "typescript": ["/usr/bin/node", "--expose-internals", "-e", NODE],  # without types, which is all that the tests need
}


class Shell:
    """`run` gives the status of a cell; what it writes goes to `say(name, text)` meanwhile."""

    def __init__(self, box, language):
        self.box, self.language = box, language
        self.child = None

    async def start(self, env):
        cells_out, self.cells = os.pipe()
        self.statuses, statuses_in = os.pipe()
        wrap = 'exec 3<&%d 4>&%d %d<&- %d>&-; exec "$@"' % (cells_out, statuses_in, cells_out, statuses_in)
        argv = ["/bin/bash", "-c", wrap, "bash", *PROGRAMS[self.language]]
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            self.child = await self.box.spawn(argv, "/home/user", env, stdin=null, stdout=pipe, stderr=pipe,
                                              pass_fds=(cells_out, statuses_in))
        finally:
            os.close(cells_out)
            os.close(statuses_in)
        loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader()
        self.transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.reader), os.fdopen(self.statuses, "rb"))

    async def run(self, code, env, say):
        if self.child is None:
            await self.start(env)
        data = code.encode("utf-8", "surrogatepass")
        word = os.urandom(16).hex().encode()
        whole = b"%d %s\n" % (len(data), word) + data
        write = asyncio.get_running_loop().run_in_executor(None, write_all, self.cells, whole)
        await asyncio.gather(write, *(copy(getattr(self.child, name), name, b"\0" + word, say) for name in ("stdout", "stderr")))
        status = await self.reader.readline()
        if status:
            return int(status)
        code = await self.child.wait()  # the cell has ended its process; the next one gets another
        self.close()
        return code or 255

    def close(self):
        if self.child is not None:
            boxes.kill_child(self.child)
            os.close(self.cells)
            self.transport.close()
            self.child = None


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data):]


async def copy(stream, name, end, say):
    """Until the end mark, or the process' end."""
    rest, decoder = b"", codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        data = await stream.read(1 << 16)
        rest += data
        last = not data or rest.endswith(end)
        keep = 0 if last else len(end)
        text = decoder.decode(rest.removesuffix(end) if last else rest[:-keep], last)
        rest = b"" if last else rest[-keep:]
        if text:
            await say(name, text)
        if last:
            return
