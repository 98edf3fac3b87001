package nodeagent

import (
	"reflect"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// releasedClaims remembers, for each volume that this process has released, the data of its PersistentVolume
// that the volume's tags lack: the claim, if it still exists, gets events about the volume, and a volume that
// is brought back should be as before. A volume may have several PersistentVolumes; the last one is reported,
// and its claim gets the events.
type releasedClaims struct {
	mu     sync.Mutex
	byUUID map[string]releasedNotes // of the volume
}

// releasedNotes are the notes of one volume.
type releasedNotes struct {
	pool volume.PoolName // of the volume
	said []releasedClaim
}

type releasedClaim struct {
	uid    types.UID               // of the PersistentVolume
	ref    *corev1.ObjectReference // nil: none was bound
	origin flexlvmv1.ReleasedOrigin
}

func newReleasedClaims() *releasedClaims {
	return &releasedClaims{byUUID: map[string]releasedNotes{}}
}

func (c *releasedClaims) note(uuid string, pool volume.PoolName, said releasedClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	others := slices.DeleteFunc(c.byUUID[uuid].said, func(known releasedClaim) bool { return known.uid == said.uid })
	c.byUUID[uuid] = releasedNotes{pool, append(others, said)}
}

// has reports whether this process has released a volume and noted exactly this data, so that a report
// published since then has it, or has the later data of another PersistentVolume.
func (c *releasedClaims) has(uuid string, said releasedClaim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.byUUID[uuid].said, func(known releasedClaim) bool { return reflect.DeepEqual(known, said) })
}

// last returns the last noted data of a volume. The caller holds mu.
func (c *releasedClaims) last(uuid string) (known releasedClaim, there bool) {
	all := c.byUUID[uuid].said
	if len(all) == 0 {
		return known, false
	}
	return all[len(all)-1], true
}

// of returns the claim of a volume's last noted PersistentVolume; false if none was bound.
func (c *releasedClaims) of(uuid string) (corev1.ObjectReference, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, _ := c.last(uuid); known.ref != nil {
		return *known.ref, true
	}
	return corev1.ObjectReference{}, false
}

// origin returns the data of a volume's PersistentVolume; nil if none was noted.
func (c *releasedClaims) origin(uuid string) *flexlvmv1.ReleasedOrigin {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, there := c.last(uuid); there {
		return &known.origin
	}
	return nil
}

// keepOnly drops the notes of volumes that are gone.
func (c *releasedClaims) keepOnly(mayExist func(uuid string, pool volume.PoolName) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uuid, notes := range c.byUUID {
		if !mayExist(uuid, notes.pool) {
			delete(c.byUUID, uuid)
		}
	}
}

// originOf returns the data of a PersistentVolume that the tags of its volume lack, without defaults.
func originOf(c persistentvolume.Volume, object *corev1.PersistentVolume) flexlvmv1.ReleasedOrigin {
	out := flexlvmv1.ReleasedOrigin{
		Claim: c.ClaimName, StorageClassName: object.Spec.StorageClassName, Inodes: c.Inodes,
		OverprovisionRatio: object.Annotations[pv.AnnotationRatio],
	}
	if c.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		out.ReclaimPolicy = string(c.ReclaimPolicy)
	}
	if door := persistentvolume.DoorOf(object); door != pv.Flex {
		out.Door = string(door)
	}
	if loss := object.Annotations[pv.AnnotationOnNodeLoss]; loss == string(volume.OnNodeLossRelease) {
		out.OnNodeLoss = loss
	}
	if limits, err := volume.ParseIOLimits(pv.AnnotationIOLimits, c.IOLimits); err == nil && !limits.IsZero() {
		out.IOLimits = limits.String()
	}
	if trim, err := volume.ParseTrim(pv.AnnotationTrim, c.Trim); err == nil && trim != volume.TrimAuto {
		out.Trim = string(trim)
	}
	if modes := object.Spec.AccessModes; len(modes) != 1 || modes[0] != corev1.ReadWriteOnce {
		for _, mode := range modes {
			out.AccessModes = append(out.AccessModes, string(mode))
		}
	}
	if options, err := volume.ParseMountOptions("spec.mountOptions", object.Spec.MountOptions); err == nil {
		for _, option := range options {
			out.MountOptions = append(out.MountOptions, string(option))
		}
	}
	return out
}
