"""Computes in all sorts of Python frames until it is killed: python_busy.py [THREADS].

A line that ends in `# -> names` calls functions of these names, and so does no other
line: every stack can be judged by this text.
"""

import functools
import re
import sys
import threading


def leaf(n):
    total = 0
    for i in range(n):
        total += i * i % 7
        total ^= i
    return total


def long_line(n):
    return sum(
        [
            i * i
            for i in
            range(n)
        ]
    )


def recursion(depth):
    if depth:
        return recursion(depth - 1)  # -> recursion
    return leaf(3000)  # -> leaf


def numbers(n):
    for i in range(n):
        yield leaf(300) + i  # -> leaf


def chained(n):
    yield from numbers(n)  # -> numbers


def by_generator():
    total = 0
    for number in chained(8):  # -> chained
        total += number
    return total + sum(numbers(4))  # -> numbers


def key(x):
    return -leaf(400) * x  # -> leaf


def by_callback():
    sorted([3, 1, 2], key=key)  # -> key
    functools.reduce(joined, [1, 2, 3])  # -> joined
    return re.sub("a", replaced, "aXaX")  # -> replaced


def joined(a, b):
    return leaf(400) and a + b  # -> leaf


def replaced(match):
    return str(leaf(400))  # -> leaf


class Thing:
    def __init__(self, n):
        self.n = leaf(n)  # -> leaf

    def __add__(self, other):
        leaf(500)  # -> leaf
        return other

    @property
    def value(self):
        return leaf(600)  # -> leaf


def by_object():
    thing = Thing(500)  # -> __init__
    thing + thing  # -> __add__
    return thing.value  # -> value


def wrapper(f):
    @functools.wraps(f)
    def wrapped(*args):
        return f(*args)  # -> decorated

    return wrapped


@wrapper
def decorated(n):
    try:
        raise ValueError(n)
    except ValueError:
        leaf(n)  # -> leaf
    finally:
        leaf(n)  # -> leaf


def work():
    while True:
        leaf(2000)  # -> leaf
        long_line(2000)  # -> long_line
        recursion(40)  # -> recursion
        by_generator()  # -> by_generator
        by_callback()  # -> by_callback
        by_object()  # -> by_object
        decorated(700)  # -> wrapped


if __name__ == "__main__":
    for _ in range(int(sys.argv[1]) if sys.argv[1:] else 0):
        threading.Thread(target=work, daemon=True).start()
    print("ready", flush=True)
    work()  # -> work
