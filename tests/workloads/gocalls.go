// Go and C that call each other, several times over, on the program's first thread; for
// the seconds that its argument says, or for ever.
package main

/*
#include <math.h>
#cgo CFLAGS: -O1
#cgo LDFLAGS: -lm

extern int goBack(int, int);

static double spin(int n) {
	double sum = 0;
	for (int i = 1; i < n; i++)
		sum += sqrt(i) * sin(i);
	return sum;
}

static int back(int depth, int n) {
	return goBack(depth, n) + (int)spin(n % 7);
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
)

//go:noinline
func work(n int) int {
	names := map[string]int{}
	for i := 0; i < 5; i++ {
		names[fmt.Sprint(n, i)] = i
	}
	return len(names)
}

//export goBack
func goBack(depth, n C.int) C.int {
	if depth > 0 {
		return C.back(depth-1, n) + C.int(work(int(n)))
	}
	return C.int(work(int(n)))
}

// CPU time of this thread: the load of the machine does not shorten the work.
func cpuSeconds() float64 {
	const thread = 1
	var used syscall.Rusage
	if err := syscall.Getrusage(thread, &used); err != nil {
		panic(err)
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

func main() {
	runtime.LockOSThread()
	seconds := 1 << 30
	if len(os.Args) > 1 {
		seconds, _ = strconv.Atoi(os.Args[1])
	}
	fmt.Println("pid", os.Getpid())
	end := cpuSeconds() + float64(seconds)
	sum := 0
	for n := 0; n%10 != 0 || cpuSeconds() < end; n++ {
		sum += int(C.spin(40)) + int(C.back(C.int(n%4), C.int(n))) + work(n)
		if n%100 == 0 {
			fmt.Fprintln(os.Stderr, sum)
		}
	}
}
