package rest_test

// rules lists every rule of the contract, of the decisions and of the wire facts that this face
// keeps. Each has at least one row in the golden table.
func rules() []string {
	return []string{
		// Requests that cannot be read.
		"400 broken JSON", "400 empty body", "400 body is not an object", "400 duplicate key", "400 invalid UTF-8", "400 nested too deep",
		"400 unreadable query", "413 body over 1 MiB", "415 content type is not JSON",
		// Single values.
		"422 unknown property", "422 property name in other case", "422 wrong type", "422 null where nothing says so", "registry may be null",
		"422 missing field", "422 bound", "422 enum", "422 pattern", "422 whole number", "422 port", "422 of balancers alone", "422 environment", "422 args", "422 vCPU count",
		"422 unknown catalog id", "422 parameter", "422 mount shape", "422 CUDA version", "422 Idempotency-Key",
		// Rules between fields, and references.
		"400 exactly one of gpu and cpu", "400 both mount kinds", "400 persistent mount on a CPU pod", "400 mount path", "400 CUDA list with floor", "400 mounts of the place", "422 variables after the merge",
		"400 globalNetworking without its preconditions", "404 unknown reference names the field", "400 catalog parameters that belong together",
		// Who may.
		"401 missing bearer token", "401 malformed bearer token", "401 unknown key", "401 expired key", "401 key in the URL",
		"403 key without the permission", "403 preset beyond the key", "404 missing object", "404 foreign object", "404 unknown path", "405 with Allow",
		"429 quota of a window", "429 failed authentications", "429 unknown paths", "rate headers", "quotas of the account",
		// Outcomes.
		"400 no capacity", "402 low balance", "409 action not allowed", "409 locked", "503 outcome unknown", "500 internal error", "x-request-id",
		// Records.
		"201 create pod", "200 dry run", "200 pod record", "200 list", "list filters", "200 action", "204 terminate", "204 delete",
		"template merge", "startSsh", "startJupyter", "CUDA of the host", "resources per GPU", "persistent mount", "create happens once",
		"200 update in place", "200 update that restarts", "200 update that changes nothing", "400 update of mounts", "400 port settings", "200 link", "422 link", "409 update", "template applied once",
		"exec before the upgrade", "files out of a pod", "files into a pod",
		"200 log", "log query", "200 catalog", "ids are percent-decoded", "list parameters are comma-joined or repeated", "unknown query parameters are ignored",
		"200 keys", "201 key", "204 key", "200 hosts", "201 join token", "200 accounts", "201 account", "health", "OpenAPI document",
	}
}
