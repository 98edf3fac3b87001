package page

import (
	"cmp"
	"fmt"
	"slices"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A dataset is a volume of a VolumeManager.
type dataset struct {
	Name     string // NAMESPACE/MANAGER/VOLUME
	State    datasetState
	Ready    int32
	Replicas int32
	Progress *flexlvmv1.Progress
	Message  string // what differs from the requested state
	Nodes    []flexlvmv1.ReplicaStatus
}

// A datasetState is the state of a dataset; states that need more attention are greater.
type datasetState int

const (
	asWanted datasetState = iota
	incomplete
	failed
)

func (s datasetState) String() string {
	return [...]string{"complete", "incomplete", "failed"}[s]
}

// Loaded returns how much of the source has been loaded.
func (d dataset) Loaded() string {
	if d.Progress == nil {
		return "-"
	}
	return fmt.Sprintf("%s of %s", volume.Bytes(d.Progress.Bytes), volume.Bytes(d.Progress.BytesTotal))
}

// datasetsOf returns datasets: failed ones first, then incomplete ones.
func datasetsOf(managers []flexlvmv1.VolumeManager) []dataset {
	out := []dataset{}
	for i := range managers {
		m := &managers[i]
		for _, v := range m.Status.Volumes {
			out = append(out, datasetOf(m.Namespace+"/"+m.Name+"/"+v.ID, v))
		}
	}
	slices.SortFunc(out, func(a, b dataset) int {
		return cmp.Or(cmp.Compare(b.State, a.State), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func datasetOf(name string, v flexlvmv1.VolumeStatus) dataset {
	out := dataset{Name: name, Ready: v.ReadyReplicas, Replicas: v.Replicas, Progress: v.Progress}
	if v.Message != flexlvmv1.MessageSuccess {
		out.Message = v.Message
	}
	if v.ReadyReplicas < v.Replicas {
		out.State = incomplete
	}
	for _, n := range v.Nodes {
		switch n.State {
		case flexlvmv1.ReplicaComplete:
			continue
		case flexlvmv1.ReplicaFailed:
			out.State = failed
		case flexlvmv1.ReplicaLoading, flexlvmv1.ReplicaStreaming, flexlvmv1.ReplicaUploading, flexlvmv1.ReplicaWaiting:
			out.State = max(out.State, incomplete)
		}
		out.Nodes = append(out.Nodes, n)
	}
	if len(v.Failures) > 0 {
		out.State = failed
	}
	return out
}
