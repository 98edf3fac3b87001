package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/flexlvm/flexlvm/internal/kube"
)

// pagedAPI serves PersistentVolumes and pods, each in three pages of two. It records the queries. If failure is
// set, it fails from page failFrom on.
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
	if strings.HasSuffix(r.URL.Path, "/pods") {
		_ = json.NewEncoder(w).Encode(corev1.PodList{
			TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: meta, Items: []corev1.Pod{{ObjectMeta: names(0)}, {ObjectMeta: names(1)}},
		})
		return
	}
	_ = json.NewEncoder(w).Encode(corev1.PersistentVolumeList{
		TypeMeta: metav1.TypeMeta{Kind: "PersistentVolumeList", APIVersion: "v1"}, ListMeta: meta, Items: []corev1.PersistentVolume{{ObjectMeta: names(0)}, {ObjectMeta: names(1)}},
	})
}

// but returns a function that collects the names of all pods but one.
func but(names *[]string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Name != "1-0" {
			*names = append(*names, p.Name)
		}
	}
}

// Lists are read in pages, of which only the wanted objects are kept. If a page fails, the whole list fails.
func TestListsInPages(t *testing.T) {
	for name, list := range map[string]func(context.Context, *kube.Client) ([]string, error){
		"volumes": func(ctx context.Context, c *kube.Client) (names []string, err error) {
			all, err := c.VolumesWithoutNodeLabel(ctx, func(v *corev1.PersistentVolume) bool { return v.Name != "1-0" })
			for i := range all {
				names = append(names, all[i].Name)
			}
			return names, err
		},
		"pods of no node": func(ctx context.Context, c *kube.Client) (names []string, err error) {
			err = c.UnscheduledPods(ctx, "", but(&names))
			return names, err
		},
		"pods of a node": func(ctx context.Context, c *kube.Client) (names []string, err error) {
			err = c.Pods(ctx, "node-1", but(&names))
			return names, err
		},
		"pods of a namespace": func(ctx context.Context, c *kube.Client) (names []string, err error) {
			err = c.PodsOfNamespace(ctx, "team", but(&names))
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
				_, err = list(t.Context(), client)
				require.Equal(t, failure.ErrStatus.Reason, apierrors.ReasonForError(err))
			}
		})
	}
}

// largePods is an API server with pods of the given sizes.
type largePods struct {
	sizes  []int
	limits []int
	asked  url.Values // query of the last request
}

func (a *largePods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.asked = r.URL.Query()
	from, _ := strconv.Atoi(a.asked.Get("continue"))
	limit, _ := strconv.Atoi(a.asked.Get("limit"))
	a.limits = append(a.limits, limit)
	to := min(from+limit, len(a.sizes))
	out := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	if to < len(a.sizes) {
		out.Continue = strconv.Itoa(to)
	}
	for i := from; i < to; i++ {
		out.Items = append(out.Items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: strconv.Itoa(i), Annotations: map[string]string{"env": strings.Repeat("x", a.sizes[i])},
		}})
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_ = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(out, w) // in protobuf, like the real API server; the client may stop reading early
}

// However large pods are, and in whatever order, no page of more than 16 MiB is decoded.
func TestLargePodsAreReadInSmallPages(t *testing.T) {
	api := &largePods{}
	for i := range 1500 {
		size := 100
		if i >= 500 && i < 530 {
			size = 1 << 20
		}
		api.sizes = append(api.sizes, size)
	}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	client, err := kube.NewClient(&rest.Config{Host: server.URL, QPS: -1})
	require.NoError(t, err)
	next, most := 0, 0
	requests, page := 0, 0 // page is the size of the pods since the last request
	require.NoError(t, client.Pods(t.Context(), "node-1", func(pod *corev1.Pod) {
		require.Equal(t, strconv.Itoa(next), pod.Name)
		if requests != len(api.limits) {
			requests, page = len(api.limits), 0
		}
		page += len(pod.Annotations["env"])
		most = max(most, page)
		next++
	}))
	require.Equal(t, len(api.sizes), next)
	require.LessOrEqual(t, most, 16<<20)
	require.Less(t, len(api.limits), 40, "pages grow again: %v", api.limits)
	require.Equal(t, 500, api.limits[0])
	require.Equal(t, "spec.nodeName=node-1,status.phase!=Succeeded,status.phase!=Failed", api.asked.Get("fieldSelector"))

	api.sizes = []int{17 << 20}
	require.ErrorContains(t, client.PodsOfNamespace(t.Context(), "team", func(*corev1.Pod) {}), "list the pods of namespace team: the answer is too large")
}

// Of all lists that run at the same time, one page is in memory.
func TestOnePageAtATime(t *testing.T) {
	api := &largePods{sizes: make([]int, 2)}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	client, err := kube.NewClient(&rest.Config{Host: server.URL, QPS: -1})
	require.NoError(t, err)
	var reading, together atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			_ = client.PodsOfNamespace(t.Context(), "team", func(*corev1.Pod) {
				if reading.Add(1) > 1 {
					together.Add(1)
				}
				time.Sleep(time.Millisecond)
				reading.Add(-1)
			})
		})
	}
	all.Wait()
	require.Zero(t, together.Load())

	require.NoError(t, client.PodsOfNamespace(t.Context(), "team", func(*corev1.Pod) {
		given, stop := context.WithCancel(t.Context())
		stop()
		require.ErrorIs(t, client.PodsOfNamespace(given, "team", func(*corev1.Pod) {}), context.Canceled, "and the other may give up")
	}))
}
