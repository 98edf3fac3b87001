package dataset

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// podPage is how many pods are asked for at once: a namespace may have thousands.
const podPage = 500

// eachPod gives each pod of a namespace, as the API server has them. All pages are of one moment;
// where they cannot be, that is an error, and some pods may have been given.
func eachPod(ctx context.Context, live client.Reader, namespace string, each func(*corev1.Pod)) error {
	for next := ""; ; {
		page := &corev1.PodList{}
		if err := live.List(ctx, page, client.InNamespace(namespace), client.Limit(podPage), client.Continue(next)); err != nil {
			return fmt.Errorf("list pods of namespace %s: %w", namespace, err)
		}
		for i := range page.Items {
			each(&page.Items[i])
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}
