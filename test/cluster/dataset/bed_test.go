//go:build cluster

package dataset_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	system  = "flexlvm-system"
	account = "flexlvm-provisioner"
	longest = 9 * time.Minute // the limit of every wait; seconds on an idle machine
)

// bed is a control plane with the shipped manifests applied.
type bed struct {
	cluster *cluster.Cluster
	client  client.Client
	config  *rest.Config
	source  string // root of the checkout
	dir     string // for files of this test
}

// start starts the bed, which is stopped after the test.
func start(t *testing.T) *bed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute) // a cold run builds Kubernetes
	defer cancel()
	source, err := vm.SourceDir()
	require.NoError(t, err)
	b := &bed{source: source, dir: t.TempDir()}
	b.cluster, err = cluster.Start(ctx, cluster.Config{
		Name: fmt.Sprintf("dataset-%d", os.Getpid()), ControlPlaneOnly: true, Log: os.Stderr,
		ControllerManagerFlags: []string{"--node-monitor-grace-period=24h"}, // the nodes have no kubelets
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		require.NoError(t, b.cluster.Stop(ctx))
	})
	b.config, err = clientcmd.BuildConfigFromFlags("", b.cluster.AdminKubeconfig())
	require.NoError(t, err)
	b.config.Dial, b.config.QPS, b.config.Burst = b.cluster.Dial, 500, 1000
	known := runtime.NewScheme()
	require.NoError(t, scheme.AddToScheme(known))
	require.NoError(t, flexlvmv1.AddToScheme(known))
	b.kubectl(t, "apply", "-k", filepath.Join(source, "installer"))
	require.NoError(t, b.cluster.Established(t.Context()))
	b.client, err = client.New(b.config, client.Options{Scheme: known})
	require.NoError(t, err)
	return b
}

func (b *bed) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	out, err := b.cluster.Kubectl(ctx, args...)
	require.NoError(t, err)
	return out
}

// apply runs kubectl apply on a manifest. The error is the server's answer.
func (b *bed) apply(t *testing.T, manifest string, args ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	_, err := b.cluster.KubectlInput(ctx, strings.NewReader(manifest), append([]string{"apply", "-f", "-"}, args...)...)
	return err
}
