// Links CPython and runs a text. Its module `host` has a function that only the Python function
// `inner` calls. Argument 1: seconds of CPU time.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))

APART void c_called_by_inner(void)
{
	for (volatile long i = 0; i < 2000000; i++)
		;
}

static PyObject *work(PyObject *self, PyObject *none)
{
	c_called_by_inner();
	Py_RETURN_NONE;
}

static PyObject *used(PyObject *self, PyObject *none)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return PyFloat_FromDouble(t.tv_sec + t.tv_nsec * 1e-9);
}

static PyMethodDef methods[] = {{"work", work, METH_NOARGS, 0}, {"used", used, METH_NOARGS, 0}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "host", 0, -1, methods};
static PyObject *host(void) { return PyModule_Create(&module); }

APART int embeds(const char *text) { return PyRun_SimpleString(text) + 1; }

int main(int argc, char **argv)
{
	char text[1000];
	snprintf(text, sizeof text,
		 "import host\n"
		 "def inner():\n"
		 "    host.work()\n"
		 "def outer():\n"
		 "    inner()\n"
		 "end = host.used() + %s\n"
		 "while host.used() < end:\n"
		 "    outer()\n",
		 argv[1]);
	PyImport_AppendInittab("host", host);
	Py_Initialize();
	printf("pid %d\n", getpid());
	fflush(stdout);
	int failed = embeds(text) != 1;
	return failed || Py_FinalizeEx();
}
