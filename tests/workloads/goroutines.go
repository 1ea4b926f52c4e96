// Go code of several kinds on the program's first thread: small functions, maps,
// sorting, formatting, closures, interfaces, deferred calls, panics, growing stacks; for
// the seconds that its argument says, or for ever.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"syscall"
)

type shape interface{ area(int) int }
type square struct{ side int }
type circle struct{ radius, scale int }

func (s square) area(n int) int  { return s.side*s.side + n }
func (c *circle) area(n int) int { return c.radius*c.radius*c.scale + n }

//go:noinline
func leaf(n int) int { return n*3 + 1 }

//go:noinline
func deep(n int) int {
	var pad [64]int
	if n == 0 {
		return leaf(n)
	}
	pad[n%64] = deep(n - 1)
	return pad[n%64] + leaf(n)
}

func recovered(n int) (result int) {
	defer func() {
		if recover() != nil {
			result = leaf(n)
		}
	}()
	if n%3 == 0 {
		panic("no")
	}
	return n
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
		words := map[string]int{}
		for i := 0; i < 40; i++ {
			words[fmt.Sprintf("%d-%x", i*n, n)] += i
		}
		keys := make([]string, 0)
		for key := range words {
			keys = append(keys, strings.ToUpper(key))
		}
		sort.Slice(keys, func(a, b int) bool { return keys[a] < keys[b] })
		for i, s := range []shape{square{n}, &circle{n, 3}} {
			sum += s.area(i)
		}
		sum += deep(n%20) + recovered(n) + len(strings.Join(keys, ","))
		if n%50 == 0 {
			done := make(chan int)
			go func() { done <- deep(30) }()
			sum += <-done
		}
		if n%100 == 0 {
			fmt.Fprintln(os.Stderr, sum)
		}
	}
}
