package v2

// BillingPeriod is one bucket of time.
type BillingPeriod struct {
	StartTime Time `json:"startTime" doc:"Begin of the bucket."`
	EndTime   Time `json:"endTime" doc:"End of the bucket; charges at this moment are in the next."`
}

// BillingWindow tells which time was looked at.
type BillingWindow struct {
	StartTime  Time   `json:"startTime" doc:"Begin, snapped down to a bucket."`
	EndTime    Time   `json:"endTime" doc:"End, snapped up to a bucket."`
	BucketSize string `json:"bucketSize" doc:"Length of a bucket." enum:"hour,day,week,month,year"`
}

// AccountAmounts are everything that was charged, in USD.
type AccountAmounts struct {
	Total             float64 `json:"totalAmount" doc:"Sum of the others in USD."`
	PodGPU            float64 `json:"podGpuAmount" doc:"GPUs of pods, in USD."`
	PodCPU            float64 `json:"podCpuAmount" doc:"vCPUs of CPU pods, in USD."`
	PodDisk           float64 `json:"podDiskAmount" doc:"Container disks and persistent mounts of pods, in USD."`
	ServerlessGPU     float64 `json:"serverlessGpuAmount" doc:"GPUs of serverless workers, in USD."`
	ServerlessCPU     float64 `json:"serverlessCpuAmount" doc:"vCPUs of serverless workers, in USD."`
	ServerlessDisk    float64 `json:"serverlessDiskAmount" doc:"Disks of serverless workers, in USD."`
	ServerlessFee     float64 `json:"serverlessFeeAmount" doc:"Fees of serverless endpoints, in USD."`
	StorageStandard   float64 `json:"storageStandardAmount" doc:"Network volumes of the tier STANDARD, in USD."`
	StorageHigh       float64 `json:"storageHighPerformanceAmount" doc:"Network volumes of the tier HIGH_PERFORMANCE, in USD."`
	Endpoint          float64 `json:"endpointAmount" doc:"Public endpoints, in USD."`
	ClusterGPU        float64 `json:"clusterGpuAmount" doc:"GPUs of clusters, in USD."`
	ClusterDisk       float64 `json:"clusterDiskAmount" doc:"Disks of clusters, in USD."`
	ClusterNetworking float64 `json:"clusterNetworkingAmount" doc:"Networks of clusters, in USD."`
	EndpointRevenue   float64 `json:"endpointRevenue" gantry:"own" doc:"What calls of public endpoints behind which the account's endpoints are have earned it, in USD; no part of the sum."`
}

// AccountBilling is the answer to what an account was charged, not told apart by resource.
type AccountBilling struct {
	Records  []AccountBillingRecord `json:"records" doc:"One record for each bucket with charges, oldest first."`
	Metadata AccountBillingMetadata `json:"metadata" doc:"What was looked at, and the sums."`
}

// AccountBillingRecord is one bucket.
type AccountBillingRecord struct {
	BillingPeriod
	AccountAmounts
}

// AccountBillingMetadata sums up.
type AccountBillingMetadata struct {
	Query       BillingWindow  `json:"query" doc:"The query as it was understood."`
	RecordCount int            `json:"recordCount" doc:"Number of records." minimum:"0"`
	Totals      AccountAmounts `json:"totals" doc:"Sums over the records."`
}

// PodAmounts are what pods were charged, in USD.
type PodAmounts struct {
	Total float64 `json:"totalAmount" doc:"Sum of the others in USD."`
	GPU   float64 `json:"gpuAmount" doc:"GPUs, in USD."`
	CPU   float64 `json:"cpuAmount" doc:"vCPUs of CPU pods, in USD."`
	Disk  float64 `json:"diskAmount" doc:"Container disk and persistent mount, in USD."`
}

// PodBilling is the answer to what pods were charged.
type PodBilling struct {
	Records  []PodBillingRecord `json:"records" doc:"One record for each bucket and pod with charges, by time, then pod."`
	Metadata PodBillingMetadata `json:"metadata" doc:"What was looked at, and the sums."`
}

// PodBillingRecord is one pod in one bucket.
type PodBillingRecord struct {
	BillingPeriod
	PodID string `json:"podId" doc:"Pod." example:"k3n8w0zq5r7d2a"`
	PodAmounts
}

// PodBillingQuery is a query for pods.
type PodBillingQuery struct {
	BillingWindow
	PodID Text `json:"podId" doc:"Pod that was asked for, or null."`
}

// PodBillingMetadata sums up.
type PodBillingMetadata struct {
	Query          PodBillingQuery `json:"query" doc:"The query as it was understood."`
	RecordCount    int             `json:"recordCount" doc:"Number of records." minimum:"0"`
	UniquePodCount int             `json:"uniquePodCount" doc:"Number of pods in the records." minimum:"0"`
	Totals         PodAmounts      `json:"totals" doc:"Sums over the records."`
}

// ServerlessAmounts are what serverless endpoints were charged, in USD.
type ServerlessAmounts struct {
	PodAmounts
	Fee float64 `json:"feeAmount" doc:"Fees, in USD."`
}

// ServerlessBilling is the answer to what serverless endpoints were charged.
type ServerlessBilling struct {
	Records  []ServerlessBillingRecord `json:"records" doc:"One record for each bucket and endpoint with charges."`
	Metadata ServerlessBillingMetadata `json:"metadata" doc:"What was looked at, and the sums."`
}

// ServerlessBillingRecord is one endpoint in one bucket.
type ServerlessBillingRecord struct {
	BillingPeriod
	ServerlessID string `json:"serverlessId" doc:"Serverless endpoint."`
	ServerlessAmounts
}

// ServerlessBillingQuery is a query for serverless endpoints.
type ServerlessBillingQuery struct {
	BillingWindow
	ServerlessID Text `json:"serverlessId" doc:"Endpoint that was asked for, or null."`
}

// ServerlessBillingMetadata sums up.
type ServerlessBillingMetadata struct {
	Query                 ServerlessBillingQuery `json:"query" doc:"The query as it was understood."`
	RecordCount           int                    `json:"recordCount" doc:"Number of records." minimum:"0"`
	UniqueServerlessCount int                    `json:"uniqueServerlessCount" doc:"Number of endpoints in the records." minimum:"0"`
	Totals                ServerlessAmounts      `json:"totals" doc:"Sums over the records."`
}

// EndpointAmounts are what public endpoints were charged, in USD.
type EndpointAmounts struct {
	Total   float64 `json:"totalAmount" doc:"Sum in USD."`
	Revenue float64 `json:"revenueAmount" gantry:"own" doc:"What calls of the account's own public endpoints have earned it, in USD; no part of the sum."`
}

// EndpointBilling is the answer to what public endpoints were charged.
type EndpointBilling struct {
	Records  []EndpointBillingRecord `json:"records" doc:"One record for each bucket with charges."`
	Metadata EndpointBillingMetadata `json:"metadata" doc:"What was looked at, and the sums."`
}

// EndpointBillingRecord is one bucket.
type EndpointBillingRecord struct {
	BillingPeriod
	EndpointAmounts
}

// EndpointBillingMetadata sums up.
type EndpointBillingMetadata struct {
	Query       BillingWindow   `json:"query" doc:"The query as it was understood."`
	RecordCount int             `json:"recordCount" doc:"Number of records." minimum:"0"`
	Totals      EndpointAmounts `json:"totals" doc:"Sums over the records."`
}

// VolumeAmounts are what network volumes were charged, in USD.
type VolumeAmounts struct {
	Total    float64 `json:"totalAmount" doc:"Sum of the others in USD."`
	Standard float64 `json:"standardAmount" doc:"Tier STANDARD, in USD."`
	High     float64 `json:"highPerformanceAmount" doc:"Tier HIGH_PERFORMANCE, in USD."`
}

// VolumeBilling is the answer to what network volumes were charged.
type VolumeBilling struct {
	Records  []VolumeBillingRecord `json:"records" doc:"One record for each bucket and volume with charges, by time, then volume."`
	Metadata VolumeBillingMetadata `json:"metadata" doc:"What was looked at, and the sums."`
}

// VolumeBillingRecord is one network volume in one bucket.
type VolumeBillingRecord struct {
	BillingPeriod
	NetworkVolumeID string `json:"networkVolumeId" doc:"Network volume."`
	VolumeAmounts
}

// VolumeBillingQuery is a query for network volumes.
type VolumeBillingQuery struct {
	BillingWindow
	NetworkVolumeID Text `json:"networkVolumeId" doc:"Network volume that was asked for, or null."`
}

// VolumeBillingMetadata sums up.
type VolumeBillingMetadata struct {
	Query                    VolumeBillingQuery `json:"query" doc:"The query as it was understood."`
	RecordCount              int                `json:"recordCount" doc:"Number of records." minimum:"0"`
	UniqueNetworkVolumeCount int                `json:"uniqueNetworkVolumeCount" doc:"Number of volumes in the records." minimum:"0"`
	Totals                   VolumeAmounts      `json:"totals" doc:"Sums over the records."`
}

// ClusterAmounts are what clusters were charged, in USD.
type ClusterAmounts struct {
	Total      float64 `json:"totalAmount" doc:"Sum of the others in USD."`
	GPU        float64 `json:"gpuAmount" doc:"GPUs, in USD."`
	Disk       float64 `json:"diskAmount" doc:"Disks, in USD."`
	Networking float64 `json:"networkingAmount" doc:"Networks, in USD."`
}

// ClusterBilling is the answer to what clusters were charged.
type ClusterBilling struct {
	Records  []ClusterBillingRecord `json:"records" doc:"One record for each bucket and cluster with charges."`
	Metadata ClusterBillingMetadata `json:"metadata" doc:"What was looked at, and the sums."`
}

// ClusterBillingRecord is one cluster in one bucket.
type ClusterBillingRecord struct {
	BillingPeriod
	ClusterID string `json:"clusterId" doc:"Cluster."`
	ClusterAmounts
}

// ClusterBillingQuery is a query for clusters.
type ClusterBillingQuery struct {
	BillingWindow
	ClusterID Text `json:"clusterId" doc:"Cluster that was asked for, or null."`
}

// ClusterBillingMetadata sums up.
type ClusterBillingMetadata struct {
	Query              ClusterBillingQuery `json:"query" doc:"The query as it was understood."`
	RecordCount        int                 `json:"recordCount" doc:"Number of records." minimum:"0"`
	UniqueClusterCount int                 `json:"uniqueClusterCount" doc:"Number of clusters in the records." minimum:"0"`
	Totals             ClusterAmounts      `json:"totals" doc:"Sums over the records."`
}
