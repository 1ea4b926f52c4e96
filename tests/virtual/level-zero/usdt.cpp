#include "usdt.hpp"

#include "objects.hpp"

#include <atomic>
#include <fstream>

/* Counted up by tracers while they listen. */
extern "C" {
__attribute__((section(".probes"), used, visibility("hidden"))) volatile unsigned short
	level_zero_launch_kernel_semaphore = 0;
__attribute__((section(".probes"), used, visibility("hidden"))) volatile unsigned short
	level_zero_compile_kernel_semaphore = 0;
}

/* A probe as sys/sdt.h (SystemTap) makes it: a nop and a note. The note has the
 * probe's place, the base from which readers compute how far prelink moved it, its
 * semaphore, and where its arguments are. */
#define PROBE(name, arguments, ...)                                                                \
	asm volatile("990:	nop\n"                                                                 \
		     ".pushsection .note.stapsdt,\"?\",\"note\"\n"                                     \
		     ".balign 4\n"                                                                     \
		     ".4byte 992f-991f, 994f-993f, 3\n"                                                \
		     "991:	.asciz \"stapsdt\"\n"                                                  \
		     "992:	.balign 4\n"                                                           \
		     "993:	.8byte 990b, _.stapsdt.base, level_zero_" name "_semaphore\n"          \
		     ".asciz \"level_zero\"\n"                                                         \
		     ".asciz \"" name "\"\n"                                                           \
		     ".asciz \"" arguments "\"\n"                                                      \
		     "994:	.balign 4\n"                                                           \
		     ".popsection\n"                                                                   \
		     ".ifndef _.stapsdt.base\n"                                                        \
		     ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"           \
		     ".weak _.stapsdt.base\n"                                                          \
		     ".hidden _.stapsdt.base\n"                                                        \
		     "_.stapsdt.base: .space 1\n"                                                      \
		     ".size _.stapsdt.base, 1\n"                                                       \
		     ".popsection\n"                                                                   \
		     ".endif\n"                                                                        \
		     :                                                                                 \
		     : __VA_ARGS__)

namespace vze {

void usdt_launch(const KernelImmutableData &kernel)
{
	if (!config.usdt || level_zero_launch_kernel_semaphore == 0)
		return;
	uint64_t base = config.isa_base, address = kernel.address(), size = kernel.isa_size;
	const char *name = kernel.info->name.c_str();
	PROBE("launch_kernel", "8@%0 8@%1 8@%2 8@%3", "r"(base), "r"(address), "r"(size), "r"(name));
}

void usdt_compile(const std::vector<uint8_t> &module)
{
	static std::atomic<uint32_t> number{0};
	if (!config.usdt || level_zero_compile_kernel_semaphore == 0)
		return;
	std::string path = std::string(config.dump_path) + "/dumped_zebin_module_";
	path += std::to_string(process_id()) + "_" + std::to_string(number++) + ".elf";
	std::ofstream(path, std::ios::binary)
		.write(reinterpret_cast<const char *>(module.data()),
		       static_cast<std::streamsize>(module.size()));
	const char *text = path.c_str();
	PROBE("compile_kernel", "8@%0", "r"(text));
}

} // namespace vze
