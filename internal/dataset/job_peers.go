package dataset

import (
	"net"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	peersPort = 8091
	peersDir  = "/peers"
)

// copying names the peers that a loader copies from.
type copying struct {
	claims         []string // of the peers
	addresses      []string // of their pods
	digest         string   // of their content
	refreshRequest string   // the refresh that all of them have had; empty if there is none
}

// copies reports whether a Job copies from peers.
func copies(job *batchv1.Job) bool { return job != nil && job.Annotations[annotationPeers] != "" }

// copy returns the Job that fills a replica from peers. Its pod gets no credentials, CA or claim of the source.
func (t task) copy(from copying) *batchv1.Job {
	t.from, t.refreshRequest = &from, from.refreshRequest
	t.source.Secret, t.source.CAConfigMap, t.source.Claim = "", "", ""
	job := t.load()
	job.Annotations[annotationPeers] = strings.Join(from.claims, ",")
	return job
}

// peerServerJob returns the Job that serves a complete replica to loaders that copy it, until the Job is deleted. It
// cannot write to the replica.
func (t task) peerServerJob() *batchv1.Job {
	t.from = &copying{}
	t.source.Secret, t.source.CAConfigMap, t.source.Claim, t.source.Access = "", "", "", nil
	args := append([]string{"serve", "--address=:" + strconv.Itoa(peersPort)}, t.flags()...)
	args = append(append(args, t.versionFlags()...), t.identity()...)
	if t.source.Bandwidth != "" {
		args = append(args, "--bandwidth="+t.source.Bandwidth)
	}
	job := t.job(replicaName(t.owner.Name, t.config.ID, t.index), rolePeerServer, append(args, "--", t.dest()))
	c := &job.Spec.Template.Spec.Containers[0]
	c.Ports = append(c.Ports, corev1.ContainerPort{Name: "peers", ContainerPort: peersPort})
	c.VolumeMounts[0].ReadOnly = true
	return job
}

// identity returns the flags by which peers recognize each other.
func (t task) identity() []string {
	return []string{"--peers-dir=" + peersDir, "--peers-dataset=" + hash(t.owner, t.config.ID)}
}

// peerArgs returns the flags of a loader whose replica is copied, or can be.
func (t task) peerArgs() []string {
	switch {
	case t.source.Peers == "":
		return nil
	case t.from == nil:
		return []string{"--index"}
	}
	args := append(t.identity(), "--peer-index="+t.from.digest)
	for _, address := range t.from.addresses {
		args = append(args, "--peer="+net.JoinHostPort(address, strconv.Itoa(peersPort)))
	}
	return args
}
