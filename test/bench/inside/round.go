package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/bench/figure"
)

// round compares a round of the node daemon on this node, from LVM's report to the plan, with the report alone. It
// does not include requests to the API server.
func round() (figure.Figure, error) {
	if err := adopt(); err != nil {
		return figure.Figure{}, err
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	engine, err := node.New(node.Config{}, command.New("", log))
	if err != nil {
		return figure.Figure{}, err
	}
	objects := persistentVolumes()
	return figure.Compare("a round of the node daemon, 500 volumes ÷ one `lvm fullreport`", 20, 1.3,
		figure.Side{Run: func() error { return lookAndPlan(engine, objects) }},
		figure.Side{Run: figure.Command("lvm", "fullreport", "--reportformat", "json")})
}

// adopt tags the 499 other volumes of the large group as flexlvm's.
func adopt() error {
	tags := volume.Tags{State: volume.Ready, FS: fsUUID, Size: volume.MiB, Namespace: "default", Cluster: cluster, Kind: volume.Claim}
	args := []string{"--quiet"}
	for _, t := range tags.Strings() {
		args = append(args, "--addtag", t)
	}
	args = append(args, "--select", "lv_name=~^other", large)
	if out, err := exec.Command("lvchange", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("tag the volumes: %w: %s", err, out)
	}
	return nil
}

// persistentVolumes returns their PersistentVolumes.
func persistentVolumes() []*corev1.PersistentVolume {
	var out []*corev1.PersistentVolume
	for i := range 499 {
		out = append(out, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{
				Name: "other" + strconv.Itoa(i), UID: "0f1e2d3c", Finalizers: []string{pv.Finalizer},
				Labels: map[string]string{pv.LabelNode: "node"},
			},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
				PersistentVolumeSource: corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{
					Driver:  pv.Driver,
					Options: volume.Spec{Group: large, Size: volume.MiB, Layout: volume.Linear, Kind: volume.Claim, Cluster: cluster}.Options(),
				}},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		})
	}
	return out
}

func lookAndPlan(engine *node.Engine, objects []*corev1.PersistentVolume) error {
	in, err := engine.Inventory(context.Background())
	if err != nil {
		return err
	}
	view := eviction.View{Now: time.Now(), Cluster: cluster, Pools: in.Pools, Volumes: in.Volumes}
	for _, o := range objects {
		c, err := persistentvolume.Parse(o)
		if err != nil {
			return err
		}
		view.PersistentVolumes = append(view.PersistentVolumes, c)
	}
	eviction.Judge(view)
	if r := eviction.Plan(view, eviction.DefaultPolicy()); len(in.Volumes) < 500 || r.Blocked != "" {
		return fmt.Errorf("the round saw %d volumes, blocked: %q", len(in.Volumes), r.Blocked)
	}
	return nil
}
