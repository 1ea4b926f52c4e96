// A library of Go for programs in other languages: work, memory that is soon garbage, and a call
// back into the program.
package main

// typedef void (*callback)(void);
// static void call_back(callback f) { f(); }
import "C"
import "unsafe"

var kept []*[]byte

//go:noinline
func spin(n int) int {
	sum := 1
	for i := 0; i < n; i++ {
		sum = sum*31 + i
	}
	return sum
}

//go:noinline
func fill(n int) {
	for i := 0; i < n; i++ {
		block := make([]byte, 1000+i%4000)
		kept = append(kept, &block)
		if len(kept) > 2000 {
			kept = nil
		}
	}
}

//go:noinline
func through(f unsafe.Pointer) { C.call_back(C.callback(f)) }

//export GoSpin
func GoSpin(n C.long) C.long { return C.long(spin(int(n))) }

//export GoFill
func GoFill(n C.long) { fill(int(n)) }

//export GoThrough
func GoThrough(f unsafe.Pointer) { through(f) }

func main() {}
