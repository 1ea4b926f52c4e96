/*
 * Asks the driver for a module's debug information, which it has placed on the
 * device: `ze_debug_info FILE OUT`.
 */
#include <level_zero/zet_api.h>

#include <stdio.h>
#include <stdlib.h>

static void must(ze_result_t result, const char *what)
{
	if (result == ZE_RESULT_SUCCESS)
		return;
	fprintf(stderr, "%s: 0x%x\n", what, (unsigned)result);
	exit(1);
}
#define MUST(call) must(call, #call)

static unsigned char *read_file(const char *path, size_t *size)
{
	unsigned char *bytes = malloc(1 << 20);
	FILE *file = fopen(path, "rb");
	if (file == NULL || bytes == NULL)
		exit(1);
	*size = fread(bytes, 1, 1 << 20, file);
	fclose(file);
	return bytes;
}

int main(int argc, char **argv)
{
	uint32_t one = 1;
	ze_driver_handle_t driver;
	ze_device_handle_t device;
	ze_context_handle_t context;
	ze_module_handle_t module;
	ze_context_desc_t context_desc = {.stype = ZE_STRUCTURE_TYPE_CONTEXT_DESC};
	ze_module_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_MODULE_DESC,
				 .format = ZE_MODULE_FORMAT_NATIVE};
	size_t size = 0;
	if (argc != 3)
		return 2;
	MUST(zeInit(0));
	MUST(zeDriverGet(&one, &driver));
	MUST(zeDeviceGet(driver, &one, &device));
	MUST(zeContextCreate(driver, &context_desc, &context));
	desc.pInputModule = read_file(argv[1], &desc.inputSize);
	MUST(zeModuleCreate(context, device, &desc, &module, NULL));
	zet_module_debug_info_format_t format = ZET_MODULE_DEBUG_INFO_FORMAT_ELF_DWARF;
	MUST(zetModuleGetDebugInfo(module, format, &size, NULL));
	unsigned char *bytes = malloc(size);
	MUST(zetModuleGetDebugInfo(module, format, &size, bytes));
	FILE *file = fopen(argv[2], "wb");
	if (file == NULL || fwrite(bytes, 1, size, file) != size)
		return 1;
	return fclose(file) == 0 ? 0 : 1;
}
