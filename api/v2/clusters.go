package v2

// InstantCluster is an instant cluster. Members that may be null are always there.
type InstantCluster struct {
	ID           string         `json:"id" doc:"Cluster identifier." example:"c7p2w5k9x1m4q8"`
	Name         string         `json:"name" doc:"Name of the cluster."`
	Type         string         `json:"type" doc:"What its pods are set up for." enum:"APPLICATION,TRAINING,SLURM,RAY"`
	Compute      ClusterCompute `json:"compute" doc:"Shape of its pods."`
	Template     Text           `json:"template" doc:"Template that it was created from, or null."`
	DataCenterID string         `json:"dataCenterId" doc:"Data center of all its pods."`
	Pods         ClusterPods    `json:"pods" doc:"Its pods by status."`
	Network      ClusterNetwork `json:"network" doc:"The private network of its pods."`
	Primary      ClusterPrimary `json:"primary" doc:"Its pod of rank 0."`
	CreatedAt    Time           `json:"createdAt" doc:"When it was created."`
	Status       string         `json:"status" doc:"READY: all pods run. DEGRADED: faults says what is wrong." enum:"STARTING,READY,DEGRADED,STOPPED" gantry:"true"`
	Faults       []ClusterFault `json:"faults" doc:"What is wrong with which pod, by rank." gantry:"true"`
	OnFailure    string         `json:"onFailure" doc:"What is done when a pod fails: none, restart (all pods) or stop (all pods)." enum:"none,restart,stop" gantry:"true"`
	Restarts     int            `json:"restarts" doc:"Restarts by itself since all pods last ran for ten minutes." minimum:"0" gantry:"true"`
	Cost         float64        `json:"cost" doc:"Present cost of all pods in USD per hour." minimum:"0" gantry:"true"`
}

// ClusterCompute is the shape of a cluster's pods.
type ClusterCompute struct {
	GPUTypeID      string `json:"gpuTypeId" doc:"GPU type, as GET /v2/catalog/gpus lists it." minLength:"1" maxLength:"191" example:"NVIDIA H100 80GB HBM3"`
	GPUCountPerPod int    `json:"gpuCountPerPod" doc:"GPUs of each pod." minimum:"1" maximum:"64" example:"8"`
	PodCount       int    `json:"podCount" doc:"Pods, each on a host of its own." minimum:"2" maximum:"250" example:"4"`
}

// ClusterPods counts a cluster's pods.
type ClusterPods struct {
	Total    int            `json:"total" doc:"Pods that are not terminated." minimum:"0"`
	ByStatus map[string]int `json:"byStatus" doc:"Pods by status." example:"{\"RUNNING\":4}"`
}

// ClusterNetwork is the private network of a cluster.
type ClusterNetwork struct {
	CIDR      string `json:"cidr" doc:"Range of its addresses." example:"10.65.0.0/16"`
	VXLANID   *int   `json:"vxlanId" doc:"VXLAN network identifier, or null."`
	VXLANPort *int   `json:"vxlanPort" doc:"UDP port of VXLAN, or null."`
}

// ClusterPrimary is a cluster's pod of rank 0.
type ClusterPrimary struct {
	PodID       string `json:"podId" doc:"Pod identifier."`
	Status      string `json:"status" doc:"Life-cycle status of the pod." enum:"PROVISIONING,STARTING,RUNNING,EXITED,ERROR,TERMINATED"`
	SSHEndpoint Text   `json:"sshEndpoint" doc:"host:port of its SSH server, or null." example:"203.0.113.7:30022"`
}

// ClusterFault says what is wrong with a pod of a cluster.
type ClusterFault struct {
	Rank    int    `json:"rank" doc:"Rank of the pod." minimum:"0"`
	PodID   string `json:"podId" doc:"Pod identifier."`
	HostID  Text   `json:"hostId" doc:"Host that the pod is bound to, or null."`
	Reason  string `json:"reason" doc:"One sentence."`
	LogTail Text   `json:"logTail" doc:"Last log lines of a container that failed, or null."`
}

// ClusterList is the answer to listing clusters.
type ClusterList struct {
	Page
	Clusters []InstantCluster `json:"clusters" doc:"Clusters, oldest first."`
}

// PodCluster tells a pod's place in its cluster.
type PodCluster struct {
	ID   string `json:"id" doc:"Cluster."`
	Rank *int   `json:"rank" doc:"Number of the pod, from 0; NODE_RANK."`
	Role string `json:"role,omitempty" doc:"What it is in a SLURM or RAY cluster." enum:"SLURM_CONTROLLER,SLURM_COMPUTE,RAY_HEAD,RAY_WORKER"`
	IP   string `json:"ip,omitempty" doc:"Its address in the cluster's network; it never changes."`

	Fabric string `json:"fabric,omitempty" doc:"Network with RDMA whose devices are in the pod, as in all of the cluster; absent: there is none." example:"InfiniBand" gantry:"true"`
}

// CreateClusterRequest is the body that creates a cluster.
type CreateClusterRequest struct {
	Name          string            `json:"name" doc:"Name of the cluster; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"trainer"`
	Type          string            `json:"type" doc:"What its pods are set up for." enum:"APPLICATION,TRAINING,SLURM,RAY" example:"TRAINING"`
	Compute       ClusterCompute    `json:"compute" doc:"Shape of its pods."`
	Image         *string           `json:"image,omitempty" doc:"Image reference, with an optional registry, tag and digest." minLength:"1" maxLength:"512" example:"docker.io/library/nginx:1.29"`
	Args          *string           `json:"args,omitempty" doc:"As of a pod." maxLength:"32768"`
	Disk          *int              `json:"disk,omitempty" doc:"Container disk of each pod in GB, wiped at every start." minimum:"1" maximum:"65536" example:"20"`
	Ports         []string          `json:"ports,omitzero" doc:"Ports of each pod, as of a pod." maxItems:"40" pattern:"^[0-9]{1,8}/(http|tcp)$" patternDescription:"number/protocol with the protocol http or tcp" example:"[\"22/tcp\"]"`
	Env           map[string]string `json:"env,omitzero" doc:"Environment of each pod, as of a pod." maxProperties:"50" example:"{\"EPOCHS\":\"3\"}"`
	Mounts        *Mounts           `json:"mounts,omitempty" doc:"Storage of each pod; a network volume is shared by all."`
	DataCenterIDs []string          `json:"dataCenterIds,omitempty" doc:"Data centers to choose one from; omitted or empty: any." maxItems:"32" minLength:"1" maxLength:"64" example:"[\"EU-RO-1\"]"`
	StartSSH      *bool             `json:"startSsh,omitempty" doc:"As of a pod."`
	StartJupyter  *bool             `json:"startJupyter,omitempty" doc:"As of a pod."`
	TemplateID    string            `json:"templateId,omitempty" doc:"Template to fill in what the body leaves out." minLength:"1" maxLength:"191" gantry:"true"`
	OnFailure     string            `json:"onFailure,omitempty" doc:"What is done when a pod fails: none; restart: all pods restart together, after 1 s, then after twice as long each time up to 5 minutes; stop: all pods are stopped." enum:"none,restart,stop" default:"none" gantry:"true"`
	Registry      Maybe[string]     `json:"registry,omitzero" doc:"Registry credential for a private image, or null: none." minLength:"1" maxLength:"191" gantry:"true"`
}

// UpdateClusterRequest is the body that changes a cluster.
type UpdateClusterRequest struct {
	Name *string `json:"name,omitempty" doc:"Name of the cluster. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"trainer-2"`
}
