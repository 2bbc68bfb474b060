// MIG: what fake.c says of instances. It is compiled as the end of fake.c.

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned int *now, unsigned int *pending) {
	DEVICE_CALL(d);
	if (in) return leave(NVML_ERROR_INVALID_ARGUMENT);
	*now = *pending = g->mig;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, unsigned int *is) {
	DEVICE_CALL(d);
	*is = in != NULL;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned int *count) {
	DEVICE_CALL(d);
	*count = 7;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned int index, nvmlDevice_t *mig) {
	DEVICE_CALL(d);
	if (!g->mig || (int)index >= g->instance_count) return leave(NVML_ERROR_NOT_FOUND);
	*mig = numbered(256 + 16 * (number(d) - 1) + index);
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t d, nvmlDevice_t *parent) {
	DEVICE_CALL(d);
	*parent = handle(g - m.gpus);
	return leave(in ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned int *id) {
	DEVICE_CALL(d);
	if (in) *id = in->gi;
	return leave(in ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned int *id) {
	DEVICE_CALL(d);
	if (in) *id = in->ci;
	return leave(in ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t d, nvmlDeviceAttributes_t *a) {
	DEVICE_CALL(d);
	if (!in) return leave(NVML_ERROR_NOT_SUPPORTED);
	memset(a, 0, sizeof *a);
	a->gpuInstanceSliceCount = a->computeInstanceSliceCount = in->slices;
	a->memorySizeMB = in->memory_mib;
	return leave(NVML_SUCCESS);
}

// The id of a profile is the index under which it is asked for: 0 to 4 for 1, 2, 3, 4 and 7 slices.
static int profile_of(int slices) { return slices == 7 ? 4 : slices - 1; }

static nvmlReturn_t profile(unsigned int asked, unsigned int *id) {
	*id = asked;
	return asked <= 4 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t d, unsigned int id, nvmlGpuInstance_t *gi) {
	DEVICE_CALL(d);
	for (int i = 0; i < g->instance_count; i++)
		if (g->instances[i].gi == (int)id) {
			memcpy(gi, &(void *){&g->instances[i]}, sizeof(void *));
			return leave(NVML_SUCCESS);
		}
	return leave(NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gi, nvmlGpuInstanceInfo_t *info) {
	enter(__func__);
	struct instance *in;
	memcpy(&in, &gi, sizeof in);
	memset(info, 0, sizeof *info);
	info->id = in->gi, info->profileId = profile_of(in->slices);
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gi, unsigned int id, nvmlComputeInstance_t *ci) {
	enter(__func__);
	(void)id;
	memcpy(ci, &gi, sizeof(void *));
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t ci, nvmlComputeInstanceInfo_t *info) {
	enter(__func__);
	struct instance *in;
	memcpy(&in, &ci, sizeof in);
	memset(info, 0, sizeof *info);
	info->id = in->ci, info->profileId = profile_of(in->slices);
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t d, unsigned int asked, nvmlGpuInstanceProfileInfo_t *info) {
	DEVICE_CALL(d);
	memset(info, 0, sizeof *info);
	return leave(profile(asked, &info->id));
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gi, unsigned int asked, unsigned int engine, nvmlComputeInstanceProfileInfo_t *info) {
	enter(__func__);
	(void)gi;
	memset(info, 0, sizeof *info);
	return leave(engine ? NVML_ERROR_NOT_SUPPORTED : profile(asked, &info->id));
}
