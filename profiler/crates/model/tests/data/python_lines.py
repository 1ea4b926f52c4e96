"""Writes the line tables of this file's own code objects, with the lines that Python says
its instructions have: PYTHON python_lines.py >> python_lines.txt

A line for each code object: how instructions are numbered (0: 3.8 and 3.9, 1: 3.10, 2:
newer), the first line, the table in hexadecimal, and from which unit of 2 bytes on
which line it is, `-` for none.
"""

import dis
import os
import sys


def plain(a, b):
    c = a + b
    return c


def far(flag):
    first = [


        1,


        plain(
            2,
            3),
    ]
    for item in first:
        try:
            if item and flag or not flag: plain(item, 1); plain(item, 2)
            else:
                continue
        except (ValueError,
                KeyError) as error:
            raise RuntimeError(
                "a message"
            ) from error
        finally:
            plain(
                item
                ,
                item)
    while flag:
        with open(os.devnull) as file, \
             open(os.devnull) as other:
            flag = [x
                    for x in file
                    if x] or [y for y in other]
    return {
        key: value
        for key, value in
        zip(first, first)
    }


class Shape:
    """A text
    of several

    lines."""

    size = 1

    @property
    def area(self):
        def inner():
            yield from (
                self.size *
                n
                for n in range(3))

        return sum(inner())

    async def wait(self):
        async with self as x:
            await x
        return (lambda:

                x)


def long(f):
    a = 0
LONG = 1


def dump(code):
    if sys.version_info < (3, 10):
        kind, table = 0, code.co_lnotab
        lines = [(start // 2, line) for start, line in dis.findlinestarts(code)]
    else:
        kind, table = int(sys.version_info >= (3, 11)) + 1, code.co_linetable
        lines = [(start // 2, line) for start, end, line in code.co_lines() if end > start]
    units = len(code.co_code) // 2
    starts = " ".join("%d:%s" % (at, "-" if line is None else line) for at, line in lines)
    print(kind, code.co_firstlineno, units, table.hex() or "-", starts)
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            dump(constant)


if __name__ == "__main__":
    text = open(__file__, encoding="utf-8").read()
    long_lines = []
    for number in range(150):
        long_lines.append("    a = [a,\n%s         f]" % ("\n" * (number % 40)))
        if number % 7 == 0:
            long_lines.append("\n" * 300 + "    f(" + "a + " * 100 + "1)")
    text = text.replace("\nLONG = 1\n", "\n" + "\n".join(long_lines) + "\n")
    dump(compile(text, "lines.py", "exec"))
