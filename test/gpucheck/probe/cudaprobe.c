// cudaprobe loads CUDA as programs in containers do and says how many GPUs it sees.
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "cudaprobe: %s\n", dlerror());
		return 1;
	}
	int (*init)(unsigned) = dlsym(lib, "cuInit"), (*count)(int *) = dlsym(lib, "cuDeviceGetCount"), n = 0, r;
	if (!init || !count) {
		fprintf(stderr, "cudaprobe: this is no CUDA\n");
		return 1;
	}
	if ((r = init(0)) || (r = count(&n))) {
		fprintf(stderr, "cudaprobe: CUDA error %d\n", r);
		return 1;
	}
	printf("CUDA sees %d GPU%s\n", n, n == 1 ? "" : "s");
	return 0;
}
