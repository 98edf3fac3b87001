package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// pageSize is the number of objects in one page of a list.
const pageSize = 500

// A session holds the user's access to the API server.
type session struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

func (s *session) config() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(s.rules, &s.overrides)
}

// namespace returns the namespace that kubectl would use.
func (s *session) namespace() (string, error) {
	namespace, _, err := s.config().Namespace()
	if err != nil {
		return "", fmt.Errorf("read kubeconfig: %w", err)
	}
	return namespace, nil
}

func (s *session) restConfig() (*rest.Config, error) {
	config, err := s.config().ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no kubeconfig was found, or it names no cluster; set --kubeconfig or KUBECONFIG")
	}
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 50, 100 // the defaults are too low for the logs of many workers
	return config, nil
}

func (s *session) client() (client.WithWatch, error) {
	config, err := s.restConfig()
	if err != nil {
		return nil, err
	}
	kinds, err := scheme()
	if err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: kinds})
	if err != nil {
		return nil, fmt.Errorf("create the API client: %w", err)
	}
	return c, nil
}

// kubernetes returns a client for what cannot be read as objects: logs.
func (s *session) kubernetes() (kubernetes.Interface, error) {
	config, err := s.restConfig()
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the API client: %w", err)
	}
	return kube, nil
}

// namespaced returns a client and the namespace to use.
func (s *session) namespaced() (kubernetes.Interface, string, error) {
	kube, err := s.kubernetes()
	if err != nil {
		return nil, "", err
	}
	namespace, err := s.namespace()
	return kube, namespace, err
}

// scheme returns a scheme with the kinds that are read and written.
func scheme() (*runtime.Scheme, error) {
	out := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, batchv1.AddToScheme, storagev1.AddToScheme, flexlvmv1.AddToScheme} {
		if err := add(out); err != nil {
			return nil, fmt.Errorf("create the API client: %w", err)
		}
	}
	return out, nil
}

// list lists all objects of a kind in pages.
func list[T any, L interface {
	*T
	client.ObjectList
}](ctx context.Context, c client.Client, each func(*T), options ...client.ListOption) error {
	next := ""
	for {
		page := L(new(T))
		if err := c.List(ctx, page, append([]client.ListOption{client.Limit(pageSize), client.Continue(next)}, options...)...); err != nil {
			kinds := strings.TrimSuffix(reflect.TypeFor[T]().Name(), "List") + "s"
			return withAdvice(fmt.Errorf("list %s: %w", kinds, err))
		}
		each(page)
		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}

// withAdvice adds to an API error what to do about it.
func withAdvice(err error) error {
	var failed net.Error
	switch {
	case meta.IsNoMatchError(err):
		return fmt.Errorf("%w; flexlvm is not installed in this cluster: check that --kubeconfig and --context select the right one", err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w; log in again: the API server does not know the kubeconfig's user, or its token has expired", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; docs/kubectl-plugin.md lists the permissions that each command needs", err)
	case errors.As(err, &failed):
		return fmt.Errorf("%w; check that kubectl version reaches the server, and that --kubeconfig and --context select the right cluster", err)
	}
	return err
}

// storageClass reads a StorageClass. If it does not exist, the error lists flexlvm's classes.
func storageClass(ctx context.Context, c client.Client, name string) (*storagev1.StorageClass, error) {
	class := &storagev1.StorageClass{}
	err := c.Get(ctx, client.ObjectKey{Name: name}, class)
	if err == nil {
		return class, nil
	}
	err = withAdvice(fmt.Errorf("read StorageClass %s: %w", name, err))
	if !apierrors.IsNotFound(err) {
		return nil, err
	}
	var ours []string
	if list(ctx, c, func(l *storagev1.StorageClassList) {
		for i := range l.Items {
			if l.Items[i].Provisioner == pv.Provisioner {
				ours = append(ours, l.Items[i].Name)
			}
		}
	}) == nil && len(ours) > 0 {
		return nil, fmt.Errorf("%w; flexlvm's StorageClasses are %s", err, strings.Join(ours, ", "))
	}
	return nil, err
}

func nodeStorages(ctx context.Context, c client.Client) (all []flexlvmv1.NodeStorage, err error) {
	err = list(ctx, c, func(l *flexlvmv1.NodeStorageList) { all = append(all, l.Items...) })
	return all, err
}

// reportOf returns the report of one node.
func reportOf(all []flexlvmv1.NodeStorage, node string) ([]flexlvmv1.NodeStorage, error) {
	for i := range all {
		if all[i].Name == node {
			return all[i : i+1], nil
		}
	}
	return nil, fmt.Errorf("node %s has not reported, but %s; check its name, and whether its node daemon runs", node, volume.Pluralize(len(all), "other node has", "other nodes have"))
}

func persistentVolumes(ctx context.Context, c client.Client) (all []corev1.PersistentVolume, err error) {
	err = list(ctx, c, func(l *corev1.PersistentVolumeList) { all = append(all, l.Items...) }, client.HasLabels{labelNode})
	return all, err
}

// pods returns the pods that use claims. A large cluster has many others.
func pods(ctx context.Context, c client.Client, namespace string) (all []corev1.Pod, err error) {
	err = list(ctx, c, func(l *corev1.PodList) {
		all = append(all, slices.DeleteFunc(l.Items, func(p corev1.Pod) bool {
			return !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return kubeobject.ClaimName(&p, v) != "" })
		})...)
	}, client.InNamespace(namespace))
	return all, err
}
