/* A process of a fraction of a millisecond, for the exec storm. */
#include "work.h"

static volatile unsigned long sink;

static NOINLINE void brief_work(void)
{
	sink += burn(MILLISECOND / 20);
}

int main(void)
{
	brief_work();
	return 0;
}
