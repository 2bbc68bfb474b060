package rest

// Service is what the REST face needs of the control plane: one interface for each noun, declared beside the handlers
// that use it, which are given that one alone (see on). Every call takes the principal: what is not the caller's is not
// there. Errors carry a fleet.Code.
type Service interface {
	KeyChecker
	PodService
	InsideService
	EventService
	AuditService
	CatalogService
	TemplateService
	EndpointService
	RegistryService
	VolumeService
	S3KeyService
	NetworkService
	AccountService
	SecretService
	KeyService
	MeService
	HostService
	HostEligibilityService
	ImageService
	OperatorAccountService
	PersonService
	LimitService
	ClusterService
	GatewayService
	CAService
	BackupService
	BackendService
	ModelService
	ObjectStoreService
	PlacementService
	CatalogEntryService
}

// Health is one known condition of the daemon.
type Health struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Text string `json:"text,omitempty"`
}

// HealthSource tells the daemon's conditions; it answers at once.
type HealthSource func() []Health
