/*
 * Assembly as libraries have it, without unwind data. A stack that is aligned with
 * the old one kept in memory; pushes around a call. A function that goes on in
 * another one's end; a jump instead of the last call; a table of jumps. The
 * address of an instruction by call and pop; frames that are found by a register.
 */
#include "work.h"

unsigned long asm_aligned(unsigned long n);

NOINLINE unsigned long spin(unsigned long n)
{
	return burn(2 * MILLISECOND) + n;
}

#define FUNCTION(name) ".globl " name "\n.type " name ", @function\n.p2align 4\n" name ":\n"
#define END(name) ".size " name ", .-" name "\n"

__asm__(".text\n"
	FUNCTION("asm_aligned")
	"	mov %rsp, %rax\n"
	"	push %rbp\n"
	"	push %rbx\n"
	"	sub $256, %rsp\n"
	"	and $-64, %rsp\n"
	"	mov %rax, 152(%rsp)\n"
	"	xor %eax, %eax\n"
	"	xor %ebp, %ebp\n"
	"	call asm_pushes\n"
	"	mov 152(%rsp), %rsi\n"
	"	mov -16(%rsi), %rbx\n"
	"	mov -8(%rsi), %rbp\n"
	"	lea (%rsi), %rsp\n"
	"	ret\n"
	END("asm_aligned")
	FUNCTION("asm_pushes")
	"	push %rbx\n"
	"	push %rbp\n"
	"	push %r12\n"
	"	mov $1000, %ebp\n"
	"	push %rdi\n"
	"	push %rdi\n"
	"	call asm_shares\n"
	"	add $16, %rsp\n"
	"1:	pop %r12\n"
	"	pop %rbp\n"
	"	pop %rbx\n"
	"	ret\n"
	END("asm_pushes")
	FUNCTION("asm_shares")
	"	push %rbx\n"
	"	push %rbp\n"
	"	push %r12\n"
	"	mov %rdi, %r12\n"
	"	call asm_table\n"
	"	jmp 1b\n"
	END("asm_shares")
	FUNCTION("asm_table")
	"	sub $24, %rsp\n"
	"	mov %rdi, %rax\n"
	"	and $3, %eax\n"
	"	lea 9f(%rip), %rdx\n"
	"	movslq (%rdx,%rax,4), %rax\n"
	"	add %rdx, %rax\n"
	"	cmp $0, %rdi\n"
	"	je 2f\n"
	"	jmp *%rax\n"
	"2:	call asm_here\n"
	"	add $24, %rsp\n"
	"	ret\n"
	"3:	call asm_here\n"
	"	add $24, %rsp\n"
	"	ret\n"
	END("asm_table")
	FUNCTION("asm_here")
	"	push %rbp\n"
	"	call 4f\n"
	"4:	pop %rax\n"
	"	lea 16(%rsp), %rbp\n"
	"	sub $4096, %rsp\n"
	"	call asm_jumps\n"
	"	lea -16(%rbp), %rsp\n"
	"	pop %rbp\n"
	"	ret\n"
	END("asm_here")
	FUNCTION("asm_jumps")
	"	sub $8, %rsp\n"
	"	test %rdi, %rdi\n"
	"	add $8, %rsp\n"
	"	jmp asm_last\n"
	END("asm_jumps")
	FUNCTION("asm_last")
	"	push %r13\n"
	"	mov $3, %r13d\n"
	"5:	call spin\n"
	"	mov %rax, %rdi\n"
	"	dec %r13d\n"
	"	jnz 5b\n"
	"	pop %r13\n"
	"	ret\n"
	END("asm_last")
	".section .rodata\n"
	".p2align 2\n"
	"9:	.long 2b-9b, 2b-9b, 2b-9b, 2b-9b\n"
	".text\n");

int main(int argc, char **argv)
{
	unsigned long sum = 0;
	work_begin(argc, argv);
	while (work_left())
		sum += asm_aligned(4);
	return sum == 1;
}
