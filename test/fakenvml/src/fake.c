// A stand-in for NVIDIA's libnvidia-ml.so.1. What it says is in the file that the variable FAKE_NVML names, which is
// read again whenever it is another file: see script.go for what stands in it. It has the functions that go-nvml,
// go-nvlib and nvcdi call, and no more.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include "nvml.h"

#define MAX_GPUS 16
#define MAX_LIST 64

struct instance {
	char uuid[96], name[96];
	int gi, ci, slices;
	unsigned long long memory_mib;
	int processes[MAX_LIST], process_count;
};

struct link {
	char peer[32];
	int type;
};

struct gpu {
	char name[96], uuid[96], pci[32];
	unsigned long long memory, used, ecc;
	int minor, util, mem_util, lost, unreadable, remap_failure, remap_pending, mig;
	struct link links[MAX_LIST];
	int link_count;
	int processes[MAX_LIST], process_count;
	struct instance instances[8];
	int instance_count;
};

struct xid {
	unsigned long long serial, code;
	int gpu;
};

static struct {
	char driver[64], hang[64], crash[64];
	int cuda, gpu_count, xid_count, init;
	struct gpu gpus[MAX_GPUS];
	struct xid xids[MAX_LIST];
} m;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct timespec read_at;
static ino_t read_ino;
static unsigned long long told; // serial of the newest XID that was told, or older than the first wait

static void keep(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from); }

static void add(int *list, int *count, int value) {
	if (*count < MAX_LIST) list[(*count)++] = value;
}

// word reads one line of the script: a word and what follows it.
static void word(const char *key, const char *rest) {
	static struct gpu none;
	struct gpu *g = m.gpu_count > 0 ? &m.gpus[m.gpu_count - 1] : &none;
	struct instance *in = g->instance_count > 0 ? &g->instances[g->instance_count - 1] : &none.instances[0];
	long long n = atoll(rest);
	if (!strcmp(key, "driver")) keep(m.driver, sizeof m.driver, rest);
	else if (!strcmp(key, "cuda")) m.cuda = n;
	else if (!strcmp(key, "init")) m.init = n;
	else if (!strcmp(key, "hang")) keep(m.hang, sizeof m.hang, rest);
	else if (!strcmp(key, "crash")) keep(m.crash, sizeof m.crash, rest);
	else if (!strcmp(key, "xid") && m.xid_count < MAX_LIST) {
		struct xid *x = &m.xids[m.xid_count++];
		sscanf(rest, "%llu %d %llu", &x->serial, &x->gpu, &x->code);
	} else if (!strcmp(key, "gpu") && m.gpu_count < MAX_GPUS) m.gpu_count++;
	else if (!strcmp(key, "name")) keep(g->name, sizeof g->name, rest);
	else if (!strcmp(key, "uuid")) keep(g->uuid, sizeof g->uuid, rest);
	else if (!strcmp(key, "pci")) keep(g->pci, sizeof g->pci, rest);
	else if (!strcmp(key, "memory")) g->memory = n;
	else if (!strcmp(key, "used")) g->used = n;
	else if (!strcmp(key, "minor")) g->minor = n;
	else if (!strcmp(key, "util")) g->util = n;
	else if (!strcmp(key, "memutil")) g->mem_util = n;
	else if (!strcmp(key, "ecc")) g->ecc = n;
	else if (!strcmp(key, "lost")) g->lost = n;
	else if (!strcmp(key, "unreadable")) g->unreadable = n;
	else if (!strcmp(key, "remapfailure")) g->remap_failure = n;
	else if (!strcmp(key, "remappending")) g->remap_pending = n;
	else if (!strcmp(key, "mig")) g->mig = n;
	else if (!strcmp(key, "process")) add(g->processes, &g->process_count, n);
	else if (!strcmp(key, "link") && g->link_count < MAX_LIST) {
		struct link *l = &g->links[g->link_count++];
		sscanf(rest, "%d %31s", &l->type, l->peer);
	} else if (!strcmp(key, "instance") && g->instance_count < 8) g->instance_count++;
	else if (!strcmp(key, "iuuid")) keep(in->uuid, sizeof in->uuid, rest);
	else if (!strcmp(key, "iname")) keep(in->name, sizeof in->name, rest);
	else if (!strcmp(key, "iplace")) sscanf(rest, "%d %d %d %llu", &in->gi, &in->ci, &in->slices, &in->memory_mib);
	else if (!strcmp(key, "iprocess")) add(in->processes, &in->process_count, n);
}

static void reread(void) {
	const char *path = getenv("FAKE_NVML");
	struct stat st;
	if (!path || stat(path, &st)) return;
	if (st.st_ino == read_ino && st.st_mtim.tv_sec == read_at.tv_sec && st.st_mtim.tv_nsec == read_at.tv_nsec) return;
	FILE *f = fopen(path, "re");
	if (!f) return;
	read_ino = st.st_ino, read_at = st.st_mtim;
	memset(&m, 0, sizeof m);
	char line[512];
	while (fgets(line, sizeof line, f)) {
		line[strcspn(line, "\n")] = 0;
		char *rest = strchr(line, ' ');
		if (rest) *rest++ = 0;
		word(line, rest ? rest : "");
	}
	fclose(f);
}

// enter begins a call: the script is in force, and the call hangs or dies where it says so.
static void enter(const char *call) {
	pthread_mutex_lock(&lock);
	reread();
	if (!strcmp(m.crash, call)) abort();
	while (!strcmp(m.hang, call)) {
		pthread_mutex_unlock(&lock);
		usleep(20000);
		pthread_mutex_lock(&lock);
		reread();
	}
}

static nvmlReturn_t leave(nvmlReturn_t r) {
	pthread_mutex_unlock(&lock);
	return r;
}

// Handles are 1 + index of the GPU, and for MIG instances 256 + 16 × that index + index of the instance.
static uintptr_t number(nvmlDevice_t d) { return (uintptr_t)d.handle; }

static nvmlDevice_t numbered(uintptr_t n) { return (nvmlDevice_t){(void *)n}; }

static struct gpu *gpu_of(nvmlDevice_t d) {
	uintptr_t h = number(d);
	int i = h >= 256 ? (h - 256) / 16 : h - 1;
	return i >= 0 && i < m.gpu_count ? &m.gpus[i] : NULL;
}

static struct instance *instance_of(nvmlDevice_t d) {
	uintptr_t h = number(d);
	struct gpu *g = gpu_of(d);
	return h >= 256 && g && (int)((h - 256) % 16) < g->instance_count ? &g->instances[(h - 256) % 16] : NULL;
}

static nvmlDevice_t handle(int gpu) { return numbered(1 + gpu); }

static nvmlReturn_t check(nvmlDevice_t d) {
	struct gpu *g = gpu_of(d);
	if (!g) return NVML_ERROR_INVALID_ARGUMENT;
	if (g->lost) return NVML_ERROR_GPU_IS_LOST;
	if (number(d) >= 256 && !instance_of(d)) return NVML_ERROR_NOT_FOUND;
	return NVML_SUCCESS;
}

#define DEVICE_CALL(d) \
	enter(__func__); \
	nvmlReturn_t bad = check(d); \
	if (bad != NVML_SUCCESS) return leave(bad); \
	struct gpu *g = gpu_of(d); \
	struct instance *in = instance_of(d); \
	(void)g, (void)in

nvmlReturn_t nvmlInit_v2(void) {
	enter(__func__);
	return leave(m.init);
}

nvmlReturn_t nvmlShutdown(void) {
	enter(__func__);
	return leave(NVML_SUCCESS);
}

const char *nvmlErrorString(nvmlReturn_t r) {
	switch (r) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_NOT_FOUND: return "Not Found";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT: return "Timeout";
	default: return "Unknown Error";
	}
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
	enter(__func__);
	keep(version, length, m.driver);
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
	enter(__func__);
	*version = m.cuda;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
	enter(__func__);
	*count = m.gpu_count;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *d) {
	enter(__func__);
	*d = handle(index);
	return leave(check(*d));
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *d) {
	enter(__func__);
	for (int i = 0; i < m.gpu_count; i++) {
		if (!strcmp(m.gpus[i].uuid, uuid)) {
			*d = handle(i);
			return leave(check(*d));
		}
		for (int j = 0; j < m.gpus[i].instance_count; j++)
			if (!strcmp(m.gpus[i].instances[j].uuid, uuid)) {
				*d = numbered(256 + 16 * i + j);
				return leave(check(*d));
			}
	}
	return leave(NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned int length) {
	DEVICE_CALL(d);
	keep(name, length, in ? in->name : g->name);
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned int length) {
	DEVICE_CALL(d);
	keep(uuid, length, in ? in->uuid : g->uuid);
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned int *index) {
	DEVICE_CALL(d);
	*index = in ? (number(d) - 256) % 16 : number(d) - 1;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned int *minor) {
	DEVICE_CALL(d);
	*minor = g->minor;
	return leave(NVML_SUCCESS);
}

static void fill_pci(nvmlPciInfo_t *pci, const char *bus) {
	memset(pci, 0, sizeof *pci);
	keep(pci->busId, sizeof pci->busId, bus);
	keep(pci->busIdLegacy, sizeof pci->busIdLegacy, strlen(bus) > 4 ? bus + 4 : bus);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci) {
	DEVICE_CALL(d);
	fill_pci(pci, g->pci);
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *memory) {
	DEVICE_CALL(d);
	if (g->unreadable) return leave(NVML_ERROR_UNKNOWN);
	memory->total = in ? in->memory_mib << 20 : g->memory;
	memory->used = in ? 0 : g->used;
	memory->free = memory->total - memory->used;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u) {
	DEVICE_CALL(d);
	if (in || g->mig) return leave(NVML_ERROR_NOT_SUPPORTED);
	u->gpu = g->util, u->memory = g->mem_util;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *n) {
	DEVICE_CALL(d);
	*n = type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED && counter == NVML_VOLATILE_ECC ? g->ecc : 0;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned int *corr, unsigned int *unc, unsigned int *pending, unsigned int *failed) {
	DEVICE_CALL(d);
	*corr = *unc = 0, *pending = g->remap_pending, *failed = g->remap_failure;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned int link, nvmlEnableState_t *on) {
	DEVICE_CALL(d);
	if (g->link_count == 0) return leave(NVML_ERROR_NOT_SUPPORTED);
	if (link >= 18) return leave(NVML_ERROR_INVALID_ARGUMENT);
	*on = (int)link < g->link_count ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, unsigned int link, nvmlPciInfo_t *pci) {
	DEVICE_CALL(d);
	if ((int)link >= g->link_count) return leave(NVML_ERROR_INVALID_ARGUMENT);
	fill_pci(pci, g->links[link].peer);
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t d, unsigned int link, nvmlIntNvLinkDeviceType_t *type) {
	DEVICE_CALL(d);
	if ((int)link >= g->link_count) return leave(NVML_ERROR_INVALID_ARGUMENT);
	*type = g->links[link].type;
	return leave(NVML_SUCCESS);
}

static nvmlReturn_t processes(int *list, int have, unsigned int *count, nvmlProcessInfo_t *infos) {
	unsigned int room = *count;
	*count = have;
	if (room < (unsigned int)have) return NVML_ERROR_INSUFFICIENT_SIZE;
	for (int i = 0; i < have; i++) {
		memset(&infos[i], 0, sizeof infos[i]);
		infos[i].pid = list[i];
	}
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *count, nvmlProcessInfo_t *infos) {
	DEVICE_CALL(d);
	return leave(in ? processes(in->processes, in->process_count, count, infos) : processes(g->processes, g->process_count, count, infos));
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned int *count, nvmlProcessInfo_t *infos) {
	DEVICE_CALL(d);
	(void)infos;
	*count = 0;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *count, nvmlProcessInfo_t *infos) {
	DEVICE_CALL(d);
	(void)infos, (void)count;
	return leave(NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
	enter(__func__);
	if (!told) {
		told = 1;
		for (int i = 0; i < m.xid_count; i++)
			if (m.xids[i].serial > told) told = m.xids[i].serial;
	}
	memset(set, 1, sizeof *set);
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
	(void)set;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, unsigned long long *types) {
	DEVICE_CALL(d);
	*types = nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, nvmlEventSet_t set) {
	DEVICE_CALL(d);
	(void)types, (void)set;
	return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout) {
	(void)set;
	for (unsigned int waited = 0;; waited += 10) {
		enter(__func__);
		for (int i = 0; i < m.xid_count; i++)
			if (m.xids[i].serial > told) {
				told = m.xids[i].serial;
				data->device = handle(m.xids[i].gpu);
				data->eventType = nvmlEventTypeXidCriticalError;
				data->eventData = m.xids[i].code;
				data->gpuInstanceId = data->computeInstanceId = 0xffffffff;
				return leave(NVML_SUCCESS);
			}
		leave(NVML_SUCCESS);
		if (waited >= timeout) return NVML_ERROR_TIMEOUT;
		usleep(10000);
	}
}
