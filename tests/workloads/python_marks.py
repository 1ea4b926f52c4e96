"""Launches from all sorts of Python frames, and writes down from which:
python_marks.py LIBRARY LOG [SHAPES].

Each launch has a name of its own; LOG has a line of JSON for each: the name, and the frames
as sys._getframe gives them, from the outermost on.
"""

import asyncio
import contextlib
import copy
import ctypes
import functools
import gc
import json
import os
import re
import sys
import threading
import weakref

FREE = ctypes.CDLL(sys.argv[1])
HELD = ctypes.PyDLL(sys.argv[1])
LOG = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
COUNT = [0]
LOCK = threading.Lock()


def write(frame):
    """Writes down the frames; gives a function to launch."""
    with LOCK:
        COUNT[0] += 1
        name = "k%d_%d" % (os.getpid(), COUNT[0])
    frames = []
    while frame is not None:
        code = frame.f_code
        function = getattr(code, "co_qualname", code.co_name)
        module = frame.f_globals.get("__name__", "")
        frames.append([module, function, os.path.basename(code.co_filename), frame.f_lineno])
        frame = frame.f_back
    os.write(LOG, (json.dumps([name, frames[::-1]]) + "\n").encode())
    handle = ctypes.c_void_p()
    FREE.cuModuleGetFunction(ctypes.byref(handle), None, name.encode())
    return handle


def launch(library=FREE):
    library.cuLaunchKernel(write(sys._getframe()), 1, 1, 1, 1, 1, 1, 0, None, None, None)


def both():
    launch(FREE)
    launch(HELD)


# The shapes.


def nested():
    def inner():
        def innermost():
            both()

        innermost()

    inner()


def recursion(depth=60):
    if depth:
        return recursion(depth - 1)
    both()


def mutual(depth=40):
    return (mutual_other(depth - 1)) if depth else both()


def mutual_other(depth):
    return mutual(depth - 1) if depth > 0 else both()


def generator():
    def numbers():
        for i in range(3):
            both()
            yield i
            both()

    def outer():
        yield from numbers()
        both()

    for _ in outer():
        both()
    list(outer())
    sum(numbers())
    gen = numbers()
    next(gen)
    gen.close()


def expressions():
    [launch() for _ in range(2)]
    {launch() for _ in range(2)}
    {i: launch() for i in range(2)}
    list(launch() for _ in range(2))
    (lambda: (lambda: both())())()
    sorted([3, 1, 2], key=lambda x: (both(), x)[1])
    list(map(lambda x: both(), [1, 2]))
    functools.reduce(lambda a, b: (both(), a)[1], [1, 2, 3])
    max([1, 2], key=lambda x: (both(), x)[1])
    functools.partial(both)()
    both() if both() else both()
    re.sub("a", lambda m: (both(), "b")[1], "aXa")


class Thing:
    def __init__(self):
        both()

    def __call__(self, deeper):
        return deeper()

    def __getattr__(self, name):
        both()
        if name == "missing":
            raise AttributeError(name)
        return 1

    def __add__(self, other):
        both()
        return self

    def __lt__(self, other):
        both()
        return True

    def __enter__(self):
        both()
        return self

    def __exit__(self, *args):
        both()

    def __iter__(self):
        both()
        return iter([1])

    def __len__(self):
        both()
        return 2

    def __del__(self):
        both()

    def __hash__(self):
        both()
        return 4

    def __eq__(self, other):
        both()
        return True

    def __repr__(self):
        both()
        return "thing"

    def __deepcopy__(self, memo):
        both()
        return 1

    @property
    def attribute(self):
        both()

    @classmethod
    def of_class(cls):
        both()

    @staticmethod
    def static():
        both()


class Descriptor:
    def __get__(self, owner, kind=None):
        both()
        return 5

    def __set_name__(self, owner, name):
        both()


class Meta(type):
    def __new__(cls, name, bases, namespace):
        both()
        return super().__new__(cls, name, bases, namespace)

    def __call__(cls, *args):
        both()
        return super().__call__(*args)


def objects():
    thing = Thing()
    thing(both)
    thing(lambda: thing(both))
    thing.absent
    getattr(thing, "missing", None)
    thing + thing
    sorted([thing, thing])
    with thing:
        both()
    for _ in thing:
        both()
    len(thing)
    bool(thing)
    {thing: 1}
    thing == thing
    repr(thing)
    "%r" % thing
    f"{thing!r}"
    thing.attribute
    Thing.of_class()
    thing.static()
    copy.deepcopy([thing])
    del thing

    class Made(metaclass=Meta):
        both()
        descriptor = Descriptor()

    Made().descriptor


def exceptions():
    def thrower(depth):
        if depth:
            try:
                thrower(depth - 1)
            finally:
                both()
        else:
            raise ValueError

    try:
        thrower(5)
    except ValueError:
        both()
    else:
        launch()
    with contextlib.suppress(KeyError):
        both()
        raise KeyError

    @contextlib.contextmanager
    def managed():
        both()
        try:
            yield
        finally:
            both()

    with managed():
        both()


def decorated():
    def decorator(f):
        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            both()
            return f(*args, **kwargs)

        return wrapper

    @decorator
    @decorator
    @functools.lru_cache(None)
    def target(n):
        both()
        return n

    target(1)


def lines():
    both(); both()
    (
        both()
        or
        both()
        and
        launch()
    )
    launch(
        FREE
        if True
        else HELD
    )
    x = [
        launch(),


        launch(),
        *[launch() for _ in range(1)],
    ]
    for _ in range(2): both()
    while True:
        both()
        break
    return x


def callbacks():
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)

    @kind
    def callback(i):
        both()
        if i:
            FREE.each(inner, 1)
        return 1

    @kind
    def inner(i):
        recursion(3)
        return 1

    FREE.each(callback, 2)
    HELD.each(callback, 2)

    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    libc = ctypes.CDLL(None)
    array = (ctypes.c_int * 4)(3, 1, 2, 0)
    libc.qsort(array, 4, 4, compare(lambda a, b: (both(), 0)[1]))


def code():
    exec("both()\n\nboth()")
    exec(compile("def made():\n    both()\n\nmade()", "made.py", "exec"), dict(globals()))
    eval("both()")
    for n in range(5):
        space = {"both": both}
        exec(compile("\n" * n + "def made():\n    both()\nmade()\n", "<string>", "exec"), space)


def many_codes():
    """Code objects at the places of others that are gone."""
    for n in range(200):
        text = "\n" * (n % 17) + "def again(f):\n" + "    pass\n" * (n % 5) + "    f()\nagain(both)\n"
        exec(compile(text, "<string>", "exec"), {"both": both})


def collected():
    class Node:
        def __del__(self):
            both()

    node = Node()
    node.me = node
    del node
    gc.collect()
    thing = Node()
    weakref.finalize(thing, both)
    del thing


async def awaited(depth):
    both()
    if depth:
        await awaited(depth - 1)
    await asyncio.sleep(0)
    both()


async def streamed():
    for i in range(2):
        both()
        yield i
        await asyncio.sleep(0)


async def together():
    await asyncio.gather(awaited(3), awaited(1))
    async for _ in streamed():
        both()
    [x async for x in streamed()]
    async with Async():
        both()


class Async:
    async def __aenter__(self):
        both()

    async def __aexit__(self, *args):
        await awaited(0)


def asynchronous():
    asyncio.run(together())


def thread(n):
    for _ in range(3):
        recursion(n % 20)


def threads():
    all_of_them = [threading.Thread(target=thread, args=(n,)) for n in range(50)]
    for one in all_of_them:
        one.start()
    for one in all_of_them:
        one.join()


def long_function():
    text = ["def long(f):"]
    for n in range(3000):
        text.append("    a = [%d,\n         %d]" % (n, n + 1))
        if n % 300 == 0:
            text.append("    f()")
    text.append("long(both)")
    exec(compile("\n".join(text), "long.py", "exec"), {"both": both})


def größe(n=1):
    both()
    return 変数(n)


def 変数(n):
    both()


def forked():
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            nested()
            exec(compile("def child():\n    both()\nchild()", "child.py", "exec"), {"both": both})
            os._exit(0)
        os.waitpid(pid, 0)
    nested()


SHAPES = [nested, recursion, mutual, generator, expressions, objects, exceptions, decorated, lines,
          callbacks, code, many_codes, collected, asynchronous, threads, long_function, größe, forked]

if __name__ == "__main__":
    # As workloads/known.h does.
    if os.system(f"{os.environ['UNTIL_KNOWN']}{os.getpid()} >/dev/null"):
        sys.exit("who records does not know this process")
    wanted = sys.argv[3:]
    for shape in SHAPES:
        if not wanted or shape.__name__ in wanted:
            shape()
