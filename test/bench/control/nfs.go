package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/nfs"
	"github.com/flexlvm/flexlvm/test/bench/figure"
	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	nfsAccount = "flexlvm-nfs-provisioner"
	nfsClass   = "bench-nfs"
	nfsServer  = "nfs.example.org"
	nfsPath    = "/srv/flexlvm"
)

// RunNFS returns the figures of the NFS provisioner. Its export is a directory of this machine, so that the speed
// of a server does not matter.
func RunNFS(ctx context.Context, binary, dir string, log io.Writer) (table []string, err error) {
	b, err := start(ctx, binary, dir, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	export := filepath.Join(dir, "export")
	if err := b.prepareNFS(ctx, export); err != nil {
		return nil, err
	}
	var ours, theirs, deleted, removed []time.Duration
	for i, provisioner := range []bool{true, false, false, true, true, false} {
		prefix := fmt.Sprintf("nfs-%d", i)
		var made, undone time.Duration
		if provisioner {
			made, undone, err = b.nfsRound(ctx, prefix)
			ours, deleted = append(ours, made), append(deleted, undone)
		} else {
			made, undone, err = b.nfsLoop(ctx, prefix, export)
			theirs, removed = append(theirs, made), append(removed, undone)
		}
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(b.log, "%d claims: provisioner of NFS %t, made in %.1f s, deleted in %.1f s\n", (i+1)*perRound, provisioner, made.Seconds(), undone.Seconds())
	}
	for _, f := range []figure.Figure{
		{Name: "1,000 claims of NFS, from the first PersistentVolume to the last ÷ a loop of mkdir and create", Rounds: len(ours), Target: 2, Ours: figure.Median(ours), Theirs: figure.Median(theirs)},
		{Name: "1,000 such volumes deleted, from the first to the last ÷ a loop of rm and delete", Rounds: len(deleted), Target: 2, Ours: figure.Median(deleted), Theirs: figure.Median(removed)},
		{Name: "1,000 claims of NFS with 4,000 claims there ÷ with none", Rounds: 1, Target: 1.2, Ours: ours[len(ours)-1], Theirs: ours[0]},
	} {
		table = append(table, f.String())
	}
	return table, nil
}

// prepareNFS applies the shipped manifests for NFS, and creates the class, the export and the clients with the
// rights of that provisioner.
func (b *bed) prepareNFS(ctx context.Context, export string) error {
	source, err := vm.SourceDir()
	if err != nil {
		return err
	}
	if err := os.Mkdir(export, 0o755); err != nil {
		return err
	}
	if _, err := b.cluster.Kubectl(ctx, "apply", "-k", filepath.Join(source, "installer/nfs")); err != nil {
		return err
	}
	b.command = []string{"nfs", "--export=" + nfsServer + ":" + nfsPath + "=" + export}
	if err := b.account(ctx, nfsAccount); err != nil {
		return err
	}
	class, err := b.client.StorageV1().StorageClasses().Get(ctx, "flexlvm-nfs", metav1.GetOptions{})
	if err != nil {
		return err
	}
	class.ObjectMeta = metav1.ObjectMeta{Name: nfsClass}
	class.Parameters = map[string]string{"server": nfsServer, "path": nfsPath, "onDelete": "delete"}
	_, err = b.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	return err
}

// nfsClaims creates a thousand claims in the state in which the controller manager leaves them to a provisioner.
// With volumes, they already name their volumes.
func (b *bed) nfsClaims(ctx context.Context, prefix string, volumes bool) (batch, error) {
	class := nfsClass
	out := batch{claims: make([]*corev1.PersistentVolumeClaim, perRound), names: make([]string, perRound)}
	return out, each(perRound, func(i int) error {
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%05d", prefix, i), Annotations: map[string]string{annotationProvisioner: nfs.Name}},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}
		if volumes {
			claim.Spec.VolumeName = "pvc-" + claim.Name
		}
		claim, err := b.client.CoreV1().PersistentVolumeClaims(space).Create(ctx, claim, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		out.claims[i], out.names[i] = claim, claim.Spec.VolumeName
		if !volumes {
			out.names[i] = "pvc-" + string(claim.UID)
		}
		return nil
	})
}

// nfsRound returns how long the provisioner takes for claims that exist when it starts, and to delete their volumes
// once all of them are released.
func (b *bed) nfsRound(ctx context.Context, prefix string) (made, undone time.Duration, err error) {
	claims, err := b.nfsClaims(ctx, prefix, false)
	if err != nil {
		return 0, 0, err
	}
	for _, step := range []struct {
		seen *arrivals
		took *time.Duration
	}{{b.arrived, &made}, {b.gone, &undone}} {
		p, err := b.launch()
		if err != nil {
			return 0, 0, err
		}
		first, last, err := step.seen.await(ctx, claims.names)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, p.logEnd())
		}
		if err := errors.Join(err, p.end()); err != nil {
			return 0, 0, err
		}
		*step.took = last.Sub(first)
		if step.seen == b.arrived {
			err = b.release(ctx, claims)
		}
		if err != nil {
			return 0, 0, err
		}
	}
	return made, undone, nil
}

// release does what the controller manager does when claims are deleted: while a claim exists, the provisioner
// deletes nothing. It creates another claim with a volume in place of each, so that later rounds run with more
// existing claims.
func (b *bed) release(ctx context.Context, claims batch) error {
	return each(perRound, func(i int) error {
		claim := claims.claims[i].DeepCopy()
		claim.Finalizers = nil
		all := b.client.CoreV1().PersistentVolumeClaims(space)
		if _, err := all.Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("release a claim: %w", err)
		}
		if err := all.Delete(ctx, claim.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		claim.ObjectMeta = metav1.ObjectMeta{Name: claim.Name + "-there", Annotations: claim.Annotations}
		claim.Spec.VolumeName = claims.names[i]
		if _, err := all.Create(ctx, claim, metav1.CreateOptions{}); err != nil {
			return err
		}
		v, err := b.client.CoreV1().PersistentVolumes().Get(ctx, claims.names[i], metav1.GetOptions{})
		if err != nil {
			return err
		}
		// The finalizer by which the controller manager keeps a volume that a claim uses.
		v.Finalizers = slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == "kubernetes.io/pv-protection" })
		if v, err = b.client.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{}); err != nil {
			return err
		}
		v.Status.Phase = corev1.VolumeReleased
		_, err = b.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, v, metav1.UpdateOptions{})
		return err
	})
}

// nfsLoop returns how long a client takes that only creates directories and their PersistentVolumes, and then
// deletes them, with the same parallelism and limits.
func (b *bed) nfsLoop(ctx context.Context, prefix, export string) (made, undone time.Duration, err error) {
	claims, err := b.nfsClaims(ctx, prefix, true)
	if err != nil {
		return 0, 0, err
	}
	volumes := b.plain.CoreV1().PersistentVolumes()
	mode := corev1.PersistentVolumeFilesystem
	err = eachOf(defaultWorkers, perRound, func(i int) error {
		name, claim := claims.names[i], claims.claims[i]
		if err := os.Mkdir(filepath.Join(export, name), 0o777); err != nil {
			return err
		}
		_, err := volumes.Create(ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": nfs.Name, nfs.AnnotationOnDelete: "delete"}},
			Spec: corev1.PersistentVolumeSpec{
				AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests, VolumeMode: &mode,
				StorageClassName: nfsClass, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
				ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: space, Name: claim.Name, UID: claim.UID},
				PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: nfsServer, Path: nfsPath + "/bench-" + name}},
			},
		}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("create PersistentVolumes: %w", err)
	}
	first, last, err := b.arrived.await(ctx, claims.names)
	if err != nil {
		return 0, 0, err
	}
	made = last.Sub(first)
	if err := each(perRound, func(i int) error {
		v, err := b.client.CoreV1().PersistentVolumes().Get(ctx, claims.names[i], metav1.GetOptions{})
		if err != nil {
			return err
		}
		// The finalizer by which the controller manager keeps a volume that a claim uses.
		v.Finalizers = slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == "kubernetes.io/pv-protection" })
		if v, err = b.client.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{}); err != nil {
			return err
		}
		v.Status.Phase = corev1.VolumeReleased
		_, err = b.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, v, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return 0, 0, err
	}
	err = eachOf(defaultWorkers, perRound, func(i int) error {
		if err := os.Remove(filepath.Join(export, claims.names[i])); err != nil {
			return err
		}
		return volumes.Delete(ctx, claims.names[i], metav1.DeleteOptions{})
	})
	if err != nil {
		return 0, 0, fmt.Errorf("delete PersistentVolumes: %w", err)
	}
	first, last, err = b.gone.await(ctx, claims.names)
	return made, last.Sub(first), err
}
