//go:build cluster

package cluster_test

// Tests send their requests to the API server themselves where they send many.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

// apiClient returns a client of the cluster's API server with an administrator's rights: each kubectl costs
// a twentieth of a second of processor time.
func apiClient(t *testing.T) client.WithWatch {
	t.Helper()
	c, err := sharedClient()
	require.NoError(t, err)
	return c
}

var sharedClient = sync.OnceValues(func() (client.WithWatch, error) {
	config, err := clientcmd.BuildConfigFromFlags("", shared.AdminKubeconfig())
	if err != nil {
		return nil, err
	}
	config.Dial, config.QPS, config.Burst = shared.Dial, 200, 400
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), flexlvmv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	log.SetLogger(logr.Discard()) // otherwise it prints a stack trace
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
})

// look reads the current state of an object of the tenant's namespace or of a cluster-scoped one.
func (n *tenant) look(name string, into client.Object) {
	n.t.Helper()
	require.NoError(n.t, apiClient(n.t).Get(n.ctx, types.NamespacedName{Namespace: n.namespace, Name: name}, into))
}

// applyIn applies manifests to the shared cluster like `kubectl apply --server-side --force-conflicts`, in a namespace
// if they name none. The API server refuses unknown fields of such a request.
func applyIn(ctx context.Context, t *testing.T, namespace, manifests string) error {
	t.Helper()
	documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	var failed []error
	for applied := 0; ; {
		var object unstructured.Unstructured
		switch err := documents.Decode(&object.Object); {
		case errors.Is(err, io.EOF) && applied == 0:
			return errors.New("there are no objects to apply")
		case errors.Is(err, io.EOF):
			return errors.Join(failed...)
		case err != nil:
			return errors.Join(append(failed, err)...)
		case len(object.Object) > 0:
			failed = append(failed, applyObject(ctx, apiClient(t), namespace, &object))
			applied++
		}
	}
}

func applyObject(ctx context.Context, api client.Client, namespace string, object *unstructured.Unstructured) error {
	namespaced, err := api.IsObjectNamespaced(object)
	if err != nil {
		return err
	}
	if namespaced && object.GetNamespace() == "" {
		object.SetNamespace(namespace)
	}
	return api.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test"), client.ForceOwnership)
}

// ready waits until these pods of the tenant are Ready, or all that there are if none is named.
func (n *tenant) ready(pods ...string) {
	n.t.Helper()
	await.Until(n.t, patience, func() string {
		var list corev1.PodList
		require.NoError(n.t, apiClient(n.t).List(n.ctx, &list, client.InNamespace(n.namespace)))
		isReady := map[string]bool{}
		for _, p := range list.Items {
			isReady[p.Name] = slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
		}
		wanted := pods
		if len(wanted) == 0 {
			wanted = slices.Sorted(maps.Keys(isReady))
		}
		missing := slices.DeleteFunc(slices.Clone(wanted), func(pod string) bool { return isReady[pod] })
		return await.Missing(len(wanted) > 0 && len(missing) == 0, "of the pods %v these are not Ready: %v", wanted, missing)
	})
}

// growth returns the state of a claim's growth: its resize status, capacity and condition messages.
func (n *tenant) growth(claim string) string {
	n.t.Helper()
	var is corev1.PersistentVolumeClaim
	n.look(claim, &is)
	said := fmt.Sprintf("%s %s ", is.Status.AllocatedResourceStatuses[corev1.ResourceStorage], is.Status.Capacity.Storage())
	for _, condition := range is.Status.Conditions {
		said += condition.Message + " "
	}
	return said
}

// heard returns the reasons and messages of the tenant's events with these fields.
func (n *tenant) heard(having client.MatchingFields) string {
	n.t.Helper()
	var events corev1.EventList
	require.NoError(n.t, apiClient(n.t).List(n.ctx, &events, client.InNamespace(n.namespace), having))
	var all strings.Builder
	for _, event := range events.Items {
		fmt.Fprintf(&all, "%s: %s\n", event.Reason, event.Message)
	}
	return all.String()
}

// told waits for an event of an object with the reason and a message that contains says.
func (n *tenant) told(object, reason, says string) {
	n.t.Helper()
	await.Until(n.t, patience, func() string {
		events := n.heard(client.MatchingFields{"involvedObject.name": object, "reason": reason})
		return await.Missing(strings.Contains(events, says), "no event %s of %s says %q: %s", reason, object, says, events)
	})
}

// ifFailed logs what say returns if the test has failed.
func (n *tenant) ifFailed(say func(context.Context) (string, error)) {
	n.t.Helper()
	n.t.Cleanup(func() {
		if n.t.Failed() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(n.ctx), time.Minute)
			defer cancel()
			out, err := say(ctx)
			n.t.Log(out, err)
		}
	})
}
