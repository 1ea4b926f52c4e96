/* Writes a zebin file, as a compiler in the driver does. */
#include "blob.hpp"

#include <cstring>
#include <elf.h>

namespace vze {

namespace {

constexpr uint16_t EM_GPU = 205;
/* SHT_ZEBIN_ZEINFO */
constexpr uint32_t SHT_INFO = 0xff000011;

struct Section {
	std::string name;
	uint32_t type;
	std::string bytes;
};

std::string info_text(const std::vector<KernelInfo> &kernels)
{
	std::string out = "---\nversion:         '1.8'\nkernels:\n";
	for (const KernelInfo &kernel : kernels) {
		out += "  - name:            " + kernel.name + "\n    execution_env:\n";
		out += "      grf_count:       128\n      simd_size:       ";
		out += std::to_string(kernel.simd) + "\n";
	}
	return out + "...\n";
}

/* Code that differs from kernel to kernel. */
std::string code_of(const KernelInfo &kernel)
{
	std::string out(kernel.isa_size, '\0');
	uint32_t x = static_cast<uint32_t>(std::hash<std::string>()(kernel.name)) | 1;
	for (char &byte : out) {
		x = x * 1664525 + 1013904223;
		byte = static_cast<char>(x >> 24);
	}
	return out;
}

std::vector<uint8_t> link(std::vector<Section> sections)
{
	sections.insert(sections.begin(), Section{"", SHT_NULL, ""});
	sections.push_back({".shstrtab", SHT_STRTAB, ""});
	std::string names;
	std::vector<Elf64_Shdr> headers;
	for (const Section &section : sections) {
		Elf64_Shdr header = {};
		header.sh_name = static_cast<uint32_t>(names.size());
		header.sh_type = section.type;
		header.sh_addralign = 16;
		headers.push_back(header);
		names += section.name + '\0';
	}
	sections.back().bytes = names;
	std::vector<uint8_t> out(sizeof(Elf64_Ehdr));
	for (size_t i = 1; i < sections.size(); i++) {
		out.resize((out.size() + 15) / 16 * 16);
		headers[i].sh_offset = out.size();
		headers[i].sh_size = sections[i].bytes.size();
		out.insert(out.end(), sections[i].bytes.begin(), sections[i].bytes.end());
	}
	out.resize((out.size() + 15) / 16 * 16);
	Elf64_Ehdr file = {};
	memcpy(file.e_ident, ELFMAG, SELFMAG);
	file.e_ident[EI_CLASS] = ELFCLASS64;
	file.e_ident[EI_DATA] = ELFDATA2LSB;
	file.e_ident[EI_VERSION] = EV_CURRENT;
	file.e_type = ET_REL;
	file.e_machine = EM_GPU;
	file.e_version = EV_CURRENT;
	file.e_shoff = out.size();
	file.e_ehsize = sizeof(Elf64_Ehdr);
	file.e_shentsize = sizeof(Elf64_Shdr);
	file.e_shnum = static_cast<uint16_t>(headers.size());
	file.e_shstrndx = static_cast<uint16_t>(headers.size() - 1);
	memcpy(out.data(), &file, sizeof(file));
	auto *first = reinterpret_cast<const uint8_t *>(headers.data());
	out.insert(out.end(), first, first + headers.size() * sizeof(Elf64_Shdr));
	return out;
}

} // namespace

std::vector<uint8_t> write_zebin(const std::vector<KernelInfo> &kernels)
{
	std::vector<Section> sections;
	for (const KernelInfo &kernel : kernels)
		sections.push_back({".text." + kernel.name, SHT_PROGBITS, code_of(kernel)});
	sections.push_back({".ze_info", SHT_INFO, info_text(kernels)});
	return link(std::move(sections));
}

} // namespace vze
