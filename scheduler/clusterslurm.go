package scheduler

import (
	"encoding/base64"
	"fmt"
	"strings"

	"gantry/fleet"
)

// purposeMungeKey is the purpose of the MAC that the munge key of a cluster is made from.
const purposeMungeKey = "cluster munge key"

// slurmFiles are what members of a SLURM cluster find where Debian's packages of Slurm and munge look for it. Rank 0 is the controller and
// computes like the others.
func (s *Service) slurmFiles(c *clusterSight) ([]fleet.PodFile, error) {
	mac, err := s.Sealer.MAC(purposeMungeKey, []byte(c.cluster.ID))
	if err != nil {
		return nil, err
	}
	key := base64.StdEncoding.EncodeToString(mac[:]) // munge takes any 32 bytes or more
	return []fleet.PodFile{
		{Path: "/etc/munge/munge.key", Text: fleet.Secret(key), Mode: 0o600},
		{Path: "/etc/slurm/slurm.conf", Text: fleet.Secret(slurmConfig(c)), Mode: 0o644},
		{Path: "/etc/slurm/gres.conf", Text: fleet.Secret(fmt.Sprintf("Name=gpu Count=%d\n", c.cluster.GPU.Count)), Mode: 0o644},
	}, nil
}

// slurmConfig has Slurm count what the members hold, whatever it finds of their hosts.
func slurmConfig(c *clusterSight) string {
	var out strings.Builder
	fmt.Fprintf(&out, `ClusterName=%s
SlurmctldHost=%s(%s)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
`, c.cluster.ID, c.nodes[0].names[0], c.nodes[0].addr)
	for _, n := range c.nodes {
		fmt.Fprintf(&out, "NodeName=%s NodeAddr=%s CPUs=%d RealMemory=%d Gres=gpu:%d State=UNKNOWN\n",
			n.names[0], n.addr, max(1, n.holds.MilliCPU/1000), max(1, n.holds.MemoryMB*1_000_000>>20), c.cluster.GPU.Count)
	}
	out.WriteString("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
	return out.String()
}
