package provision

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A namespace with this label gets only pods with user namespaces: the admission policy
// user-namespaces.flexlvm.io refuses all others from then on. Kubernetes lets administrators alone
// label namespaces, as for Pod Security.
const (
	labelUserNamespaces    = "flexlvm.io/user-namespaces"
	userNamespacesRequired = "required"
)

// DirectoriesOffered lets classes have layout directory. Only tests change it, until a test on a
// real cluster has shown the whole way from a claim to a pod.
var DirectoriesOffered = false

// checkDirectory refuses what a directory volume cannot be.
func checkDirectory(p Parameters, given map[string]string, wrong *controlplane.Problems) {
	if p.Layout != volume.Directory {
		return
	}
	if !DirectoriesOffered {
		wrong.Add(fmt.Sprintf("%s %q: is not offered by this release, whose nodes can make such volumes: its way from a claim to a pod has not been tested on a cluster yet; use another layout", volume.OptionLayout, volume.Directory))
	}
	if _, named := given[volume.OptionDirectoryPool]; !named {
		wrong.Add(fmt.Sprintf("%s: is required with layout %q; name the directory pool of the nodes (`flexlvm directories create` makes it)", volume.OptionDirectoryPool, volume.Directory))
	}
	const shared = "its volumes are directories of a file system that they share; leave it out"
	refuse := func(field string, value any, set bool) {
		if set {
			wrong.Add(fmt.Sprintf("%s %q: does not belong to layout %q: %s", field, value, volume.Directory, shared))
		}
	}
	refuse(parameterWipe, p.Wipe, p.Wipe != volume.WipeNone)
	refuse(parameterTrim, p.Trim, p.Trim.Regular())
	refuse(volume.OptionFSType, p.FSType, p.FSType != volume.XFS)
	refuse(volume.OptionEncrypted, "true", p.Encrypted)
	refuse(volume.OptionKind, p.Kind, p.Kind == volume.Dataset)
	for _, name := range []string{volume.ParameterReadBps, volume.ParameterWriteBps, volume.ParameterReadIOPS, volume.ParameterWriteIOPS} {
		text, limited := given[name]
		refuse(name, text, limited)
	}
}

// limitable refuses limits on IO, wherever they come from, to a volume without a device of its own.
func limitable(spec volume.Spec, limits volume.IOLimits) error {
	var wrong controlplane.Problems
	if spec.Layout == volume.Directory && !limits.IsZero() {
		wrong.Add(fmt.Sprintf("volumeAttributesClassName: limits IO, and layout %q has no limits on IO: its volumes share one device; leave it out, or use another class", volume.Directory))
	}
	return wrong.Refusal()
}

// kept refuses a directory volume to pods that could leave its quota, unless the class trusts
// them: whoever owns a file gives it another project, if his user namespace is the node's own.
func (p *Provisioner) kept(ctx context.Context, r Request, spec volume.Spec, parameters Parameters) (state, error) {
	if spec.Layout != volume.Directory || parameters.TrustPods {
		return finished, nil
	}
	ns, err := p.Listers.Namespace(ctx, r.Claim.Namespace)
	if err != nil {
		return unchanged, fmt.Errorf("get namespace %q: %w", r.Claim.Namespace, err)
	}
	var wrong controlplane.Problems
	if ns.Labels[labelUserNamespaces] != userNamespacesRequired {
		wrong.Add(fmt.Sprintf("namespace %q: has no label %s=%s, and StorageClass %q gives its volumes only to pods that are kept in their quotas by a user namespace (`hostUsers: false`); ask an administrator to label it, or for a class with %s", ns.Name, labelUserNamespaces, userNamespacesRequired, r.Class.Name, parameterTrustPods))
		return finished, wrong.Refusal()
	}
	pods, err := p.Listers.Users(ctx, r.Claim.Namespace, r.Claim.Name)
	if err != nil {
		return unchanged, err
	}
	for _, pod := range pods {
		if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
			wrong.Add(fmt.Sprintf("pod %q, which uses this claim, is older than the label %s of its namespace and has no user namespace; make it anew with `hostUsers: false`", pod.Name, labelUserNamespaces))
		}
	}
	return finished, wrong.Refusal()
}

// usersNow gives the pods that use a claim, by the API server's own word: those also that have a
// node, on which kubelet may wait for the claim, and those that are being deleted, which may run
// on for long. Those that have ended for good are no users.
func usersNow(client kubernetes.Interface) func(ctx context.Context, namespace, claim string) ([]*corev1.Pod, error) {
	return func(ctx context.Context, namespace, claim string) (out []*corev1.Pod, err error) {
		list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
		}
		for i := range list.Items {
			pod := &list.Items[i]
			ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
			if !ended && slices.Contains(kube.ClaimsOf(pod), namespace+"/"+claim) {
				out = append(out, pod)
			}
		}
		return out, nil
	}
}

// namespaceNow gives a namespace by the API server's own word: no watch is kept of what is asked
// for rarely.
func namespaceNow(client kubernetes.Interface) func(ctx context.Context, name string) (*corev1.Namespace, error) {
	return func(ctx context.Context, name string) (*corev1.Namespace, error) {
		return client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	}
}
