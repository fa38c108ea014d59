#!/usr/bin/env python3
"""Turns files into C string constants: embed.py OUT.c NAME=FILE...

Each NAME becomes `const char embedded_NAME[]` (NUL-terminated) and `const size_t embedded_NAME_len`.
"""
import sys


def literal(data):
    out = []
    for start in range(0, len(data), 24):
        piece = data[start:start + 24]
        out.append("    " + ",".join(str(b) for b in piece) + ",")
    return "\n".join(out)


def main():
    out_path, pairs = sys.argv[1], sys.argv[2:]
    lines = ["/* Made at build time; do not edit. */", "#include <stddef.h>", '#include "worker/embedded.h"', ""]
    for pair in pairs:
        name, path = pair.split("=", 1)
        with open(path, "rb") as f:
            data = f.read()
        lines.append(f"const char embedded_{name}[] = {{\n{literal(data)}\n    0}};")
        lines.append(f"const size_t embedded_{name}_len = {len(data)};")
    with open(out_path, "w") as f:
        f.write("\n".join(lines) + "\n")


main()
