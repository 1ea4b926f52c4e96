// Pretends to be node: exports what V8 exports, and has a function of the name of V8's
// interpreter. Its frames hold whatever there is in memory that is overwritten all the
// time. It prints its pid, and works for as many seconds of CPU time as its argument.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int _ZN2v88internal7Version6major_E = 13, _ZN2v88internal7Version6minor_E = 6;
#define NUMBER(name, value) int v8dbg_##name = value;
NUMBER(TaggedSize, 8)
NUMBER(SmiShiftSize, 31)
NUMBER(HeapObjectTag, 1)
NUMBER(HeapObjectTagMask, 3)
NUMBER(off_fp_context_or_frame_type, -8)
NUMBER(off_fp_function, -16)
NUMBER(scopeinfo_idx_ncontextlocals, 2)
NUMBER(scopeinfo_idx_first_vars, 5)
NUMBER(class_SharedFunctionInfo__feedback_metadata__Tagged_FeedbackMetadata_, 32)
NUMBER(class_SharedFunctionInfo__flags__int, 56)
NUMBER(class_Map__instance_type__uint16_t, 12)
NUMBER(class_JSFunction__shared__SharedFunctionInfo, 32)
NUMBER(class_Script__line_ends__Object, 56)
NUMBER(class_Script__source__Object, 8)
NUMBER(class_Script__name__Object, 16)
NUMBER(class_String__length__int32_t, 12)
NUMBER(class_SeqOneByteString__chars__char, 16)
NUMBER(class_ConsString__first__String, 16)
NUMBER(class_ConsString__second__String, 24)
NUMBER(class_ThinString__actual__String, 16)
NUMBER(class_SlicedString__parent__String, 16)
NUMBER(class_SlicedString__offset__SMI, 24)
NUMBER(class_ExternalString__resource__Object, 16)
NUMBER(type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE, 282)
NUMBER(type_Script__SCRIPT_TYPE, 167)
NUMBER(type_ScopeInfo__SCOPE_INFO_TYPE, 280)
NUMBER(FirstNonstringType, 128)
NUMBER(StringRepresentationMask, 7)
NUMBER(SeqStringTag, 0)
NUMBER(ConsStringTag, 1)
NUMBER(ExternalStringTag, 2)
NUMBER(SlicedStringTag, 3)
NUMBER(ThinStringTag, 5)
NUMBER(StringEncodingMask, 8)
NUMBER(OneByteStringTag, 8)

#define WORDS 4096
static uint64_t heap[WORDS];
// An object's map is often one of these: a function's more often than not, a script's, a scope's, a string's.
static uint64_t maps[8][2] = {{0, 282ull << 32}, {0, 167ull << 32}, {0, 280ull << 32}, {0, 40ull << 32},
                              {0, 41ull << 32},  {0, 42ull << 32},  {0, 43ull << 32},  {0, 45ull << 32}};

static uint64_t next(uint64_t *seed) {
  *seed ^= *seed << 13;
  *seed ^= *seed >> 7;
  *seed ^= *seed << 17;
  return *seed;
}

static uint64_t word(uint64_t *seed) {
  uint64_t some = next(seed);
  switch (some & 7) {
    case 0: return some;
    case 1: return (some >> 8) << 32;
    case 2: return (uint64_t)&maps[some >> 8 & some >> 11 & some >> 14 & 7] + 1;
    case 3: return 0xffff888000000001ull | (some & 0xfffff8);
    default: return (uint64_t)&heap[some >> 8 & (WORDS - 64)] + 1;
  }
}

static void *scribble(void *arg) {
  uint64_t seed = 88172645463325252ull;
  for (;;) heap[next(&seed) & (WORDS - 1)] = word(&seed);
  return arg;
}

void Builtins_InterpreterEntryTrampoline(uint64_t function, uint64_t context, void (*then)(void));
__asm__(".text\n"
        ".globl Builtins_InterpreterEntryTrampoline\n"
        ".type Builtins_InterpreterEntryTrampoline, @function\n"
        "Builtins_InterpreterEntryTrampoline:\n"
        "push %rbp\nmov %rsp, %rbp\npush %rsi\npush %rdi\nsub $16, %rsp\n"
        "call *%rdx\n"
        "mov %rbp, %rsp\npop %rbp\nret\n"
        ".size Builtins_InterpreterEntryTrampoline, . - Builtins_InterpreterEntryTrampoline\n");

static int depth;
static uint64_t seed = 1234567;

__attribute__((noinline)) void burn_fake(void) {
  for (volatile int i = 0; i < 200000; i++) {
  }
}

__attribute__((noinline)) void call_fake(void) {
  if (depth++ < 4)
    Builtins_InterpreterEntryTrampoline(word(&seed), word(&seed), call_fake);
  else
    burn_fake();
  __asm__ volatile("" ::: "memory");
}

int main(int argc, char **argv) {
  printf("pid %d\n", getpid());
  fflush(stdout);
  double seconds = argc > 1 ? atof(argv[1]) : 2;
  for (int i = 0; i < WORDS; i++) heap[i] = word(&seed);
  pthread_t thread;
  pthread_create(&thread, 0, scribble, 0);
  struct timespec start, now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
  do {
    depth = 0;
    call_fake();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  } while (now.tv_sec - start.tv_sec + (now.tv_nsec - start.tv_nsec) / 1e9 < seconds);
  return 0;
}
