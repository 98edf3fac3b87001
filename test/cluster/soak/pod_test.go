//go:build cluster

package soak_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/test/cluster"
)

// A kind of pod is what it does with a volume.
type kind string

const (
	toWrite        kind = "write"
	toWriteAndGrow kind = "write-grow" // its volume grows while it runs
	toCheck        kind = "check"
	toGrow         kind = "grow" // the claim was enlarged before
)

// script is what pods do with a volume. It may be ended at any instant and started again by another
// pod. A file with a checksum is replaced atomically, and never covers data that may not be on the disk
// yet. A pod that ends without a message of the script was ended from outside.
const script = `
say() { echo "said: $*" >/dev/termination-log; }
fail() { say "$*"; exit 1; }
seal() { sync; sha256sum "$@" >sum.tmp && sync && mv sum.tmp sum && sync || fail "cannot write the checksum"; }
digest() { sha256sum | cut -d' ' -f1; }
bytes() { set -- $(stat -f -c '%S %b' .); echo $(($1 * $2)); }

cd /data || fail "there is no volume"
case $KIND in write*) new=yes ;; *) new= ;; esac
case $KIND in *grow) more=yes ;; *) more= ;; esac
if [ $new ] && [ ! -e owner ]; then
	[ -z "$(ls -A | grep -v '^owner.tmp$')" ] || fail "a new volume has files: $(ls -A | head)"
	echo $CLAIM >owner.tmp && sync && mv owner.tmp owner && sync || fail "cannot write"
fi
[ -e owner ] || fail "the volume is empty: $(ls -A | head)"
[ "$(cat owner)" = $CLAIM ] || fail "this is the volume of $(cat owner)"
if [ $new ] && [ ! -e sum ]; then
	dd if=/dev/urandom of=blob bs=64k count=$BLOCKS 2>/dev/null || fail "cannot write"
	seal blob
fi
[ -e sum ] || fail "the checksum is gone: $(ls -A | head)"
sha256sum -c -s sum || fail "the data is not what was written: $(sha256sum -c sum 2>&1 | head)"
tries=0
until [ $(bytes) = $SIZE ]; do
	tries=$((tries + 1))
	[ $tries -lt 600 ] || fail "its size is $(bytes), and not $SIZE"
	sleep 0.5
done
if [ $more ] && ! grep -q more sum; then
	dd if=/dev/urandom of=more bs=64k count=$BLOCKS 2>/dev/null || fail "cannot write more"
	seal blob more
fi
files=blob
[ ! -e more ] || files="blob more"
say ok $(digest <blob) $(cat $files | digest) $(bytes)
`

// pod returns a pod that does something with the claim's volume once.
func (c *claim) pod(name string, kind kind) *corev1.Pod {
	grace, links := int64(1), false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: c.node},
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken:  new(bool),
			HostNetwork:                   true, // an emulated node takes seconds to set up and tear down a network
			EnableServiceLinks:            &links,
			Containers: []corev1.Container{{
				Name: "main", Image: cluster.BusyboxImage, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"sh", "-c", script},
				Env: []corev1.EnvVar{
					{Name: "KIND", Value: string(kind)}, {Name: "CLAIM", Value: c.name},
					{Name: "BLOCKS", Value: fmt.Sprint(c.blocks)}, {Name: "SIZE", Value: fmt.Sprint(int64(c.now))},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.name},
			}}},
		},
	}
}
