#include "blob.hpp"

#include "config.hpp"

#include <cstdlib>
#include <cstring>
#include <elf.h>
#include <fstream>
#include <string_view>

namespace vze {

const char *const STALL_NAMES[STALL_REASONS] = {
	"active", "tdr", "other", "control", "pipe", "send", "dist", "sbid", "sync", "fetch",
};

namespace {

constexpr uint16_t EM_GPU = 205;
constexpr uint32_t SPIRV_MAGIC = 0x07230203;
constexpr uint16_t SPIRV_ENTRY_POINT = 15;
constexpr size_t MAX_KERNELS = 65536;

std::string_view word(std::string_view &rest)
{
	size_t begin = rest.find_first_not_of(" \t\r");
	if (begin == std::string_view::npos) {
		rest = {};
		return {};
	}
	rest.remove_prefix(begin);
	size_t end = rest.find_first_of(" \t\r");
	std::string_view out = rest.substr(0, end);
	rest.remove_prefix(end == std::string_view::npos ? rest.size() : end);
	return out;
}

bool to_number(std::string_view text, uint64_t &out)
{
	std::string copy(text);
	char *end = nullptr;
	out = strtoull(copy.c_str(), &end, 0);
	return !copy.empty() && *end == '\0';
}

KernelInfo *find(std::vector<KernelInfo> &kernels, std::string_view name)
{
	for (auto &kernel : kernels)
		if (kernel.name == name)
			return &kernel;
	return nullptr;
}

KernelInfo &find_or_add(std::vector<KernelInfo> &kernels, std::string_view name)
{
	if (KernelInfo *kernel = find(kernels, name))
		return *kernel;
	kernels.emplace_back();
	kernels.back().name = name;
	kernels.back().ns = config.kernel_ns;
	return kernels.back();
}

bool required_size(std::string_view text, uint32_t (&out)[3])
{
	for (uint32_t &side : out) {
		size_t comma = text.find(',');
		uint64_t n = 0;
		if (!to_number(text.substr(0, comma), n) || n > UINT32_MAX)
			return false;
		side = static_cast<uint32_t>(n);
		text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
	}
	return text.empty();
}

bool durations(std::string_view text, std::vector<uint64_t> &out)
{
	out.clear();
	while (!text.empty()) {
		size_t comma = text.find(',');
		uint64_t n = 0;
		if (!to_number(text.substr(0, comma), n))
			return false;
		out.push_back(n);
		text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
	}
	return !out.empty();
}

bool kernel_option(KernelInfo &kernel, std::string_view option)
{
	size_t equals = option.find('=');
	if (equals == std::string_view::npos)
		return false;
	std::string_view key = option.substr(0, equals), value = option.substr(equals + 1);
	if (key == "required")
		return required_size(value, kernel.required);
	if (key == "turns")
		return durations(value, kernel.turns);
	uint64_t n = 0;
	if (!to_number(value, n))
		return false;
	if (key == "ns")
		kernel.ns = n;
	else if (key == "group_ns")
		kernel.group_ns = n;
	else if (key == "simd")
		kernel.simd = static_cast<uint32_t>(n);
	else if (key == "args")
		kernel.args = static_cast<uint32_t>(n);
	else if (key == "isa" && n > 0 && n < (1U << 30))
		kernel.isa_size = n;
	else
		return false;
	return true;
}

bool stall_statement(std::vector<KernelInfo> &kernels, std::string_view rest, bool per_ms)
{
	KernelInfo *kernel = find(kernels, word(rest));
	uint64_t offset = 0, count = 0;
	if (kernel == nullptr || !to_number(word(rest), offset))
		return false;
	std::string_view name = word(rest);
	if (!to_number(word(rest), count) || count > UINT32_MAX || offset >= kernel->isa_size)
		return false;
	for (uint8_t reason = 0; reason < STALL_REASONS; reason++) {
		if (name == STALL_NAMES[reason]) {
			kernel->stalls.push_back({static_cast<uint32_t>(offset),
						  static_cast<StallReason>(reason),
						  static_cast<uint32_t>(count), per_ms});
			return true;
		}
	}
	return false;
}

bool statement(std::vector<KernelInfo> &kernels, std::string_view line)
{
	std::string_view verb = word(line);
	if (verb.empty() || verb[0] == '#')
		return true;
	if (verb == "stall" || verb == "rate")
		return stall_statement(kernels, line, verb == "rate");
	std::string_view name = word(line);
	if (verb != "kernel" || name.empty() || kernels.size() >= MAX_KERNELS)
		return false;
	KernelInfo &kernel = find_or_add(kernels, name);
	for (auto option = word(line); !option.empty(); option = word(line))
		if (!kernel_option(kernel, option))
			return false;
	return true;
}

std::string parse_text(std::string_view text, std::vector<KernelInfo> &kernels)
{
	while (!text.empty()) {
		size_t end = text.find('\n');
		std::string_view line = text.substr(0, end);
		if (!statement(kernels, line))
			return "not understood: " + std::string(line);
		text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
	}
	return {};
}

/* The sections of an ELF file, every access within its bytes. */
class Sections {
      public:
	Sections(const uint8_t *bytes, size_t size) : bytes_(bytes), size_(size) {}

	bool open()
	{
		if (!read(0, header_) || memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0)
			return false;
		return header_.e_ident[EI_CLASS] == ELFCLASS64 && header_.e_machine == EM_GPU &&
		       header_.e_shentsize == sizeof(Elf64_Shdr) &&
		       section(header_.e_shstrndx, names_);
	}
	uint16_t count() const { return header_.e_shnum; }
	bool section(uint16_t i, Elf64_Shdr &out) const
	{
		uint64_t at = header_.e_shoff + uint64_t{i} * sizeof(out);
		if (i >= header_.e_shnum || header_.e_shoff > size_ || !read(at, out))
			return false;
		return out.sh_type == SHT_NOBITS ||
		       (out.sh_offset <= size_ && out.sh_size <= size_ - out.sh_offset);
	}
	std::string_view bytes(const Elf64_Shdr &s) const
	{
		return {reinterpret_cast<const char *>(bytes_) + s.sh_offset, s.sh_size};
	}
	std::string_view name(const Elf64_Shdr &s) const
	{
		std::string_view all = bytes(names_);
		if (s.sh_name >= all.size())
			return {};
		all.remove_prefix(s.sh_name);
		return all.substr(0, all.find('\0'));
	}

      private:
	template <typename T> bool read(uint64_t at, T &out) const
	{
		if (at > size_ || size_ - at < sizeof(T))
			return false;
		memcpy(&out, bytes_ + at, sizeof(T));
		return true;
	}
	const uint8_t *bytes_;
	size_t size_;
	Elf64_Ehdr header_{};
	Elf64_Shdr names_{};
};

/* Kernels that .ze_info lists, with their SIMD width: lines `- name: X` and
 * `simd_size: N` of the list `kernels:`. */
void parse_info(std::string_view text, std::vector<KernelInfo> &listed)
{
	bool kernels = false;
	while (!text.empty()) {
		size_t end = text.find('\n');
		std::string_view line = text.substr(0, end);
		text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
		if (!line.empty() && line[0] != ' ' && line[0] != '-')
			kernels = line.substr(0, 8) == "kernels:";
		std::string_view rest = line;
		std::string_view first = word(rest), second = word(rest);
		bool item = first == "-" && second == "name:";
		/* Arguments have names too, deeper in the text. */
		if (kernels && item && line.find('-') <= 2 && listed.size() < MAX_KERNELS)
			find_or_add(listed, word(rest));
		uint64_t simd = 0;
		if (kernels && first == "simd_size:" && !listed.empty() && to_number(second, simd))
			listed.back().simd = static_cast<uint32_t>(simd);
	}
}

std::string parse_elf(const uint8_t *bytes, size_t size, std::vector<KernelInfo> &kernels)
{
	Sections sections(bytes, size);
	if (!sections.open())
		return "neither a zebin nor a text module";
	std::string_view own;
	std::vector<KernelInfo> code;
	for (uint16_t i = 0; i < sections.count(); i++) {
		Elf64_Shdr header;
		if (!sections.section(i, header))
			return "damaged section table";
		std::string_view name = sections.name(header);
		if (name == ".ze_info") {
			parse_info(sections.bytes(header), kernels);
		} else if (name == ".vze") {
			own = sections.bytes(header);
		} else if (name.substr(0, 6) == ".text." && code.size() < MAX_KERNELS) {
			KernelInfo &kernel = find_or_add(code, name.substr(6));
			kernel.code_at = header.sh_offset;
			kernel.code_size = header.sh_size;
			kernel.isa_size = header.sh_size;
		}
	}
	bool listed = !kernels.empty();
	for (auto &part : code) {
		if (listed && find(kernels, part.name) == nullptr)
			continue;
		KernelInfo &kernel = find_or_add(kernels, part.name);
		kernel.code_at = part.code_at;
		kernel.code_size = part.code_size;
		kernel.isa_size = part.isa_size;
	}
	return parse_text(own, kernels);
}

std::string parse_spirv(const uint8_t *bytes, size_t size, std::vector<KernelInfo> &kernels)
{
	auto at = [&](size_t i) {
		uint32_t value;
		memcpy(&value, bytes + i * 4, 4);
		return value;
	};
	size_t words = size / 4;
	if (words < 5 || at(0) != SPIRV_MAGIC)
		return "not SPIR-V";
	for (size_t i = 5; i < words;) {
		size_t length = at(i) >> 16;
		if (length == 0 || length > words - i)
			return "damaged SPIR-V";
		if ((at(i) & 0xffff) == SPIRV_ENTRY_POINT && length > 3) {
			auto *text = reinterpret_cast<const char *>(bytes + (i + 3) * 4);
			find_or_add(kernels, {text, strnlen(text, (length - 3) * 4)});
		}
		i += length;
	}
	return {};
}

/* Whether a statement is about a kernel that is not among these. */
bool is_foreign(std::vector<KernelInfo> &kernels, std::string_view line)
{
	std::string_view verb = word(line);
	return !verb.empty() && verb[0] != '#' && find(kernels, word(line)) == nullptr;
}

} // namespace

std::string apply_schedule(const char *path, std::vector<KernelInfo> &kernels)
{
	std::ifstream file(path);
	if (!file)
		return std::string("not readable: ") + path;
	for (std::string line; std::getline(file, line);)
		if (!is_foreign(kernels, line) && !statement(kernels, line))
			return "not understood: " + line;
	return {};
}

std::string parse_blob(BlobKind kind, const uint8_t *bytes, size_t size,
		       std::vector<KernelInfo> &kernels)
{
	constexpr std::string_view MAGIC = "vze module 1\n";
	std::string_view text(reinterpret_cast<const char *>(bytes), size);
	if (kind == BlobKind::Spirv)
		return parse_spirv(bytes, size, kernels);
	if (text.substr(0, MAGIC.size()) == MAGIC)
		return parse_text(text.substr(MAGIC.size()), kernels);
	return parse_elf(bytes, size, kernels);
}

} // namespace vze
