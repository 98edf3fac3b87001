package nfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Reasons of the events on a PersistentVolume that is deleted.
const (
	eventArchived = "DirectoryArchived"
	eventRetained = "DirectoryRetained"
	eventMissing  = "DirectoryMissing"
)

// finalizer is the library's finalizer on PersistentVolumes whose directory has not been disposed of.
const finalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// Parts are the dependencies of a provisioner.
type Parts struct {
	Exports Exports
	Cluster string // UID of the kube-system namespace
	// IOTimeout is the time limit for one step of a server.
	IOTimeout time.Duration
	// MaxWaiting is the maximum number of steps that wait for one server.
	MaxWaiting int
	// MaxLong is the maximum number of removals that may each keep a worker for longer than turn.
	MaxLong int
	Events  record.EventRecorder
	// Volume reads a PersistentVolume from the API server, not from a cache.
	Volume func(ctx context.Context, name string) (*corev1.PersistentVolume, error)
	// EachVolume calls a function for every PersistentVolume, read from the API server, not from a cache.
	EachVolume func(ctx context.Context, do func(*corev1.PersistentVolume)) error
	Refused    func(*controlplane.Refusal) // called for every refusal
	// PutOff is called, with the class, for every removal that ends with errTurn.
	PutOff func(class string)
	Now    func() time.Time
}

// Provisioner implements controller.Provisioner with a directory for each volume.
type Provisioner struct {
	Parts
	gates map[string]*gate // by export
	long  chan struct{}    // one entry for each removal that takes longer than turn
	room  func(*os.File) (room, error)

	survey survey
}

var (
	_ controller.Provisioner      = (*Provisioner)(nil)
	_ controller.BlockProvisioner = (*Provisioner)(nil)
)

// NewProvisioner returns a provisioner. It does not access any export yet.
func NewProvisioner(parts Parts) *Provisioner {
	p := &Provisioner{Parts: parts, gates: map[string]*gate{}, room: roomOf, long: make(chan struct{}, parts.MaxLong)}
	for _, e := range parts.Exports {
		p.gates[e.String()] = newGate(e, parts.IOTimeout, parts.MaxWaiting, parts.Now)
	}
	return p
}

// SupportsBlock returns true although block volumes are not supported: the library would refuse them
// without advice, so Provision refuses them.
func (p *Provisioner) SupportsBlock(context.Context) bool { return true }

// Provision creates the directory for a claim and returns its PersistentVolume. A *controlplane.Refusal
// is final for the library, too: if the claim is then deleted, a directory that an earlier attempt
// created stays. All other errors are retried. If the directory or its mark may exist already, the
// library retries even if the claim is deleted: in the end the PersistentVolume exists, and its
// deletion disposes of the directory.
func (p *Provisioner) Provision(ctx context.Context, o controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	r, err := p.Exports.read(o.PVName, o.PVC, o.StorageClass)
	if err != nil {
		if refusal := (*controlplane.Refusal)(nil); errors.As(err, &refusal) {
			p.Refused(refusal)
		}
		return nil, controller.ProvisioningFinished, err
	}
	r.place.cluster = p.Cluster
	asked, state, err := p.create(ctx, r, false)
	if errors.Is(err, nfsmark.ErrNone) {
		asked, state, err = p.createFirst(ctx, r)
	}
	if err != nil {
		return nil, state, fmt.Errorf("make directory %s: %w", r.place.name, err)
	}
	if err := p.awaitSize(ctx, r.place, asked); err != nil {
		return nil, controller.ProvisioningInBackground, err
	}
	return r.persistentVolume(), controller.ProvisioningFinished, nil
}

// create creates the directory for a request. Unless first allows that it is the first one of its export, it
// fails with nfsmark.ErrNone in an export without marks. The bool is makeDirectory's asked.
func (p *Provisioner) create(ctx context.Context, r request, first bool) (bool, controller.ProvisioningState, error) {
	asked, state := false, controller.ProvisioningNoChange // not results: a call for which nobody waits any more may still set them
	g := p.gate(r.place)
	err := g.do(ctx, r.place.volume, func(ctx context.Context, root *os.Root) (err error) {
		if _, err = p.wholeFor(root, r.place); err == nil && !first {
			_, _, err = readMark(root, r.place)
		}
		if err == nil {
			asked, err = makeDirectory(ctx, root, r.place, r.Access, r.claim.Namespace+"/"+r.claim.Name)
		}
		if err != nil {
			state = begun(root, r.place)
			return err
		}
		g.used.Store(true)
		return nil
	})
	if err != nil && (errors.Is(err, errSilent) || ctx.Err() != nil) {
		return false, controller.ProvisioningInBackground, err // the call may still be running
	}
	return asked, state, err
}

// begun returns the state of a claim whose directory could not be created: in the background if its
// mark exists, or unchanged if that is unknown.
func begun(root *os.Root, at place) controller.ProvisioningState {
	switch _, marked, err := readMark(root, at); {
	case err != nil:
		return controller.ProvisioningNoChange
	case marked:
		return controller.ProvisioningInBackground
	}
	return controller.ProvisioningFinished
}

func (p *Provisioner) gate(at place) *gate { return p.gates[at.export.String()] }

// Delete disposes of the directory of a released volume as its class said when the volume was created. If
// anything is not as this provisioner created it, Delete returns an error and changes nothing.
func (p *Provisioner) Delete(ctx context.Context, seen *corev1.PersistentVolume) error {
	if seen.UID == "" {
		return nil // the API server never stored this object; the claim still uses the directory
	}
	v, onDelete, err := p.decide(ctx, seen)
	if err != nil {
		return err
	}
	at, err := p.Exports.locate(v)
	if err != nil {
		return fmt.Errorf("delete the directory: %w", err)
	}
	at.cluster = p.Cluster
	switch onDelete {
	case Archive:
		return p.archive(ctx, v, at)
	case Remove:
		return p.remove(ctx, v, at)
	case Retain:
		return p.retain(ctx, v, at)
	}
	return &volume.FieldError{Field: AnnotationOnDelete, Value: string(onDelete), Reason: "is not handled"}
}

// decide reads a PersistentVolume from the API server, and returns it and what is to be done with its directory. The
// watch may be behind, and somebody may just have decided to keep the volume. The error is a *controller.IgnoredError
// if the volume is not to be deleted.
func (p *Provisioner) decide(ctx context.Context, seen *corev1.PersistentVolume) (*corev1.PersistentVolume, OnDelete, error) {
	v, err := p.Volume(ctx, seen.Name)
	if apierrors.IsNotFound(err) {
		return nil, "", &controller.IgnoredError{Reason: "the PersistentVolume is gone"}
	} else if err != nil {
		return nil, "", fmt.Errorf("check the PersistentVolume once more before its directory is deleted: %w", err)
	}
	if v.DeletionTimestamp != nil && !slices.Contains(v.Finalizers, finalizer) {
		// The library's cache may not show yet that the library itself has removed the finalizer.
		return nil, "", &controller.IgnoredError{Reason: "the directory was disposed of, and the PersistentVolume waits for others"}
	}
	if v.UID != seen.UID || v.Status.Phase != corev1.VolumeReleased || v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		return nil, "", &controller.IgnoredError{Reason: "the PersistentVolume is not to be deleted any more"}
	}
	onDelete, err := parseOnDelete(AnnotationOnDelete, v.Annotations[AnnotationOnDelete])
	if err != nil {
		return nil, "", fmt.Errorf("delete the directory: %w", err)
	}
	return v, onDelete, nil
}

// confirm fails unless a directory is still to be disposed of in the way that was decided.
func (p *Provisioner) confirm(ctx context.Context, v *corev1.PersistentVolume, decided OnDelete) error {
	_, onDelete, err := p.decide(ctx, v)
	if err == nil && onDelete != decided {
		err = fmt.Errorf("annotation %s has changed from %s to %s; it is retried", AnnotationOnDelete, decided, onDelete)
	}
	return err
}

// find is find on the server of a volume.
func (p *Provisioner) find(ctx context.Context, at place) (finding, error) {
	var found finding
	err := p.gate(at).do(ctx, at.volume, func(_ context.Context, root *os.Root) (err error) {
		found, err = find(root, at)
		return err
	})
	if err != nil {
		return "", err // found may be written later
	}
	return found, nil
}

// retain leaves a directory as it is, also if its server does not answer. If its removal had begun, the PersistentVolume
// stays, because nothing else names what is left.
func (p *Provisioner) retain(ctx context.Context, v *corev1.PersistentVolume, at place) error {
	if found, err := p.find(ctx, at); err == nil && found == doomed {
		return fmt.Errorf("retain directory %s: a part of it was removed, and the rest is called %s: set annotation %s to %s, or the reclaim policy to Retain", at.name, doomedPrefix+at.name, AnnotationOnDelete, Archive)
	}
	p.say(v, corev1.EventTypeNormal, eventRetained, "the claim is gone; directory %s stays, as its class says (onDelete: %s)", at, Retain)
	return nil
}

func (p *Provisioner) archive(ctx context.Context, v *corev1.PersistentVolume, at place) error {
	state, err := p.begin(ctx, v, at)
	if err != nil {
		return fmt.Errorf("archive directory %s: %w", at.name, err)
	}
	if err := p.confirm(ctx, v, Archive); err != nil {
		return err // unchanged: the library recognises an IgnoredError by its type
	}
	var found finding
	err = p.gate(at).do(ctx, at.volume, func(ctx context.Context, root *os.Root) (err error) {
		found, err = archive(ctx, root, at)
		return err
	})
	if err != nil {
		return fmt.Errorf("archive directory %s: %w", at.name, err)
	}
	if found == missing || found == gone {
		p.announceMissing(v, at, found)
		return nil
	}
	kept := at
	kept.name = archivedPrefix + at.name
	if state == doomed {
		p.say(v, corev1.EventTypeNormal, eventArchived, "the claim is gone; what its removal had left of its directory is kept as %s, which only root can read, until somebody removes it", kept)
		return nil
	}
	p.say(v, corev1.EventTypeNormal, eventArchived, "the claim is gone; its directory is kept as %s until somebody removes it", kept)
	return nil
}

// turn is how long any removal of a directory may keep a worker; only MaxLong may keep one for longer.
const turn = time.Minute

// errTurn means that the worker is needed for others. What was removed stays removed, and the library retries.
var errTurn = fmt.Errorf("it is not empty after %s, and its worker is needed; the rest is removed later", turn)

// remove repeats its steps until everything is removed. Each step has its own deadline. A removal may take hours, in
// which somebody may decide to keep the rest, so each step is confirmed. Tenants can make directories of any size, so
// after its turn a removal continues only if fewer than MaxLong others do. Otherwise large directories would keep all
// workers, and no other directory would be removed.
func (p *Provisioner) remove(ctx context.Context, v *corev1.PersistentVolume, at place) error {
	state, err := p.begin(ctx, v, at)
	if err != nil {
		return fmt.Errorf("remove directory %s: %w", at.name, err)
	}
	begun, long := p.Now(), false
	mayRename := state == inPlace
	for more := true; more; mayRename = false {
		if !long && p.Now().Sub(begun) > turn {
			select {
			case p.long <- struct{}{}:
				long = true
				defer func() { <-p.long }()
			default:
				p.PutOff(v.Spec.StorageClassName)
				return fmt.Errorf("remove directory %s: %w", at.name, errTurn)
			}
		}
		if err := p.confirm(ctx, v, Remove); err != nil {
			return err // unchanged: the library recognises an IgnoredError by its type
		}
		var found finding
		err := p.gate(at).do(ctx, at.volume, func(ctx context.Context, root *os.Root) (err error) {
			found, more, err = remove(ctx, root, at, mayRename)
			return err
		})
		if err != nil {
			return fmt.Errorf("remove directory %s: %w", at.name, err)
		}
		p.announceMissing(v, at, found)
	}
	return nil
}

// announceMissing sends a warning if a directory was not found. If its mark is not there either, the server may export
// another disk, or an older backup. The directory may then be elsewhere, and its PersistentVolume is about to be deleted.
func (p *Provisioner) announceMissing(v *corev1.PersistentVolume, at place, found finding) {
	switch found {
	case missing:
		p.say(v, corev1.EventTypeWarning, eventMissing, "the claim is gone, and its directory %s was not there any more", at)
	case gone:
		p.say(v, corev1.EventTypeWarning, eventMissing, "the claim is gone, and neither its directory %s nor its mark is there: unless a removal was interrupted at its end, see whether the server exports the right disk", at)
	}
}

func (p *Provisioner) say(v *corev1.PersistentVolume, kind, reason, format string, args ...any) {
	p.Events.Eventf(v, kind, reason, format, args...)
}
