package overview

import (
	"cmp"
	"slices"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// A Dataset is a volume of a VolumeManager.
type Dataset struct {
	Namespace string             `json:"namespace"`
	Name      string             `json:"name"`
	ID        string             `json:"id"` // the volume's id
	State     flexlvmv1.State    `json:"state"`
	Claim     string             `json:"claim,omitempty"` // the claim that pods use
	Ready     int32              `json:"ready"`
	Replicas  int32              `json:"replicas"`
	Progress  flexlvmv1.Progress `json:"progress"` // of all replicas
	Message   string             `json:"message,omitempty"`
	Nodes     []Replica          `json:"nodes"`
	// Unlisted is the number of replicas that Nodes does not list.
	Unlisted int `json:"unlisted,omitempty"`
}

// A Replica is a replica of a dataset on a node.
type Replica struct {
	Node     string                 `json:"node,omitempty"` // empty until the scheduler has chosen a node
	Claim    string                 `json:"claim"`
	State    flexlvmv1.ReplicaState `json:"state"`
	Version  string                 `json:"version,omitempty"`
	Progress flexlvmv1.Progress     `json:"progress"`
	Message  string                 `json:"message,omitempty"`
}

// Settled reports whether a dataset has reached its requested state or has failed, so that no more progress is
// expected.
func (d *Dataset) Settled() bool {
	switch d.State {
	case flexlvmv1.StateFailed, flexlvmv1.StateCompleted:
		return true
	case flexlvmv1.StateRunning:
		return d.Message == flexlvmv1.MessageSuccess || d.Message == ""
	}
	return false
}

// DatasetsOf returns the volumes of VolumeManagers with the status of each replica, sorted by the managers'
// names and in the order of their specs.
func DatasetsOf(managers []flexlvmv1.VolumeManager) []Dataset {
	out := []Dataset{}
	for i := range managers {
		m := &managers[i]
		if len(m.Status.Volumes) == 0 {
			out = append(out, Dataset{Namespace: m.Namespace, Name: m.Name, State: m.Status.State, Message: cmp.Or(m.Status.Message, "the controller has not processed it yet"), Nodes: []Replica{}})
		}
		for j := range m.Status.Volumes {
			out = append(out, datasetOf(m, &m.Status.Volumes[j]))
		}
	}
	slices.SortStableFunc(out, func(a, b Dataset) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func datasetOf(m *flexlvmv1.VolumeManager, v *flexlvmv1.VolumeStatus) Dataset {
	d := Dataset{
		Namespace: m.Namespace, Name: m.Name, ID: v.ID, State: m.Status.State, Ready: v.ReadyReplicas, Replicas: v.Replicas,
		Message: v.Message, Nodes: []Replica{}, Unlisted: max(0, int(v.Replicas)-len(v.Nodes)),
	}
	if m.Status.ObservedGeneration != m.Generation {
		d.State, d.Message = flexlvmv1.StatePending, "the spec has changed, and the controller has not processed the change yet"
	}
	if v.VolumeSource != nil && v.VolumeSource.PersistentVolumeClaim != nil {
		d.Claim = v.VolumeSource.PersistentVolumeClaim.ClaimName
	}
	if v.Progress != nil {
		d.Progress = *v.Progress
	}
	for _, n := range v.Nodes {
		r := Replica{Node: n.Node, Claim: n.Claim, State: n.State, Version: n.Version, Message: n.Message}
		if n.Progress != nil {
			r.Progress = *n.Progress
		}
		if n.State == flexlvmv1.ReplicaComplete {
			r.Progress.Percent = 100
		}
		d.Nodes = append(d.Nodes, r)
	}
	return d
}
