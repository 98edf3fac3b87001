package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/flexlvm/flexlvm/internal/kube"
)

// pagedAPI has three pages of two PersistentVolumes and two pods each. It notes what it is asked, and fails
// from a page on.
type pagedAPI struct {
	asked    []url.Values
	failFrom int
	failure  *apierrors.StatusError
}

func (a *pagedAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	a.asked = append(a.asked, query)
	w.Header().Set("Content-Type", "application/json")
	page := 0
	if token := query.Get("continue"); token != "" {
		_, _ = fmt.Sscanf(token, "page-%d", &page)
	}
	if a.failure != nil && page >= a.failFrom {
		w.WriteHeader(int(a.failure.ErrStatus.Code))
		_ = json.NewEncoder(w).Encode(a.failure.ErrStatus)
		return
	}
	meta := metav1.ListMeta{ResourceVersion: "7"}
	if page < 2 {
		meta.Continue = fmt.Sprintf("page-%d", page+1)
	}
	names := func(i int) metav1.ObjectMeta { return metav1.ObjectMeta{Name: fmt.Sprintf("%d-%d", page, i)} }
	if r.URL.Path == "/api/v1/pods" {
		_ = json.NewEncoder(w).Encode(corev1.PodList{
			TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: meta, Items: []corev1.Pod{{ObjectMeta: names(0)}, {ObjectMeta: names(1)}},
		})
		return
	}
	_ = json.NewEncoder(w).Encode(corev1.PersistentVolumeList{
		TypeMeta: metav1.TypeMeta{Kind: "PersistentVolumeList", APIVersion: "v1"}, ListMeta: meta, Items: []corev1.PersistentVolume{{ObjectMeta: names(0)}, {ObjectMeta: names(1)}},
	})
}

// Lists of whole kinds are read in pages, of which only what is wanted is kept; and a list of which a page
// fails is no list.
func TestListsInPages(t *testing.T) {
	for name, list := range map[string]func(context.Context, *kube.Client) ([]string, error){
		"volumes": func(ctx context.Context, c *kube.Client) (names []string, err error) {
			all, err := c.VolumesOfNoNode(ctx, func(v *corev1.PersistentVolume) bool { return v.Name != "1-0" })
			for i := range all {
				names = append(names, all[i].Name)
			}
			return names, err
		},
		"pods": func(ctx context.Context, c *kube.Client) (names []string, err error) {
			all, err := c.PodsOfNoNode(ctx, func(p *corev1.Pod) bool { return p.Name != "1-0" })
			for i := range all {
				names = append(names, all[i].Name)
			}
			return names, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := &pagedAPI{}
			server := httptest.NewServer(api)
			t.Cleanup(server.Close)
			client, err := kube.NewClient(&rest.Config{Host: server.URL, QPS: -1})
			require.NoError(t, err)
			names, err := list(t.Context(), client)
			require.NoError(t, err)
			require.Equal(t, []string{"0-0", "0-1", "1-1", "2-0", "2-1"}, names)
			require.Len(t, api.asked, 3)
			for _, query := range api.asked {
				require.Equal(t, "500", query.Get("limit"))
			}
			for _, failure := range []*apierrors.StatusError{apierrors.NewResourceExpired("the token has expired"), apierrors.NewTooManyRequests("later", 0)} {
				failure.ErrStatus.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
				api.failure, api.failFrom = failure, 1
				names, err = list(t.Context(), client)
				require.Equal(t, failure.ErrStatus.Reason, apierrors.ReasonForError(err))
				require.Empty(t, names)
			}
		})
	}
}
