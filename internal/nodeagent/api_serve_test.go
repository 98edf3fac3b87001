package nodeagent_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
)

func reply(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	reply(w, int(err.ErrStatus.Code), err.ErrStatus)
}

// ServeHTTP parses URLs of the form /api/v1[/namespaces/NS]/RESOURCE[/NAME[/status]].
func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	parts = parts[2:]
	if parts[0] == "v1" {
		parts = parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	resource, name := parts[0], ""
	if len(parts) > 1 {
		name = parts[1]
	}
	if r.URL.Query().Get("fieldSelector") == "spec.nodeName=" {
		resource = "waiting " + resource
	}
	if r.URL.Query().Get("labelSelector") == "!"+pv.LabelNode {
		resource = "unlabelled " + resource
	}
	if resource == "nodes" && strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata;") {
		resource = "metadata of " + resource
	}
	verb := strings.ToLower(r.Method)
	switch {
	case r.URL.Query().Get("watch") != "":
		verb = "watch"
	case verb == "get" && name == "":
		verb = "list"
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // a daemon that is stopped hangs up in the middle of a request
	}
	counted := verb + " " + resource
	if byName := strings.HasPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="); verb == "list" && byName && resource == "persistentvolumes" {
		counted = "revision"
	}
	also := resource
	if strings.HasPrefix(r.URL.Query().Get("labelSelector"), flexlvmv1.LabelDiscoveredOn) {
		also = "discovered " + resource
	}
	a.mu.Lock()
	a.asked[counted]++
	if also != resource {
		a.asked[verb+" "+also]++
	}
	fault := a.fault
	a.mu.Unlock()
	if fault != nil && (fault(w, verb, resource) || also != resource && fault(w, verb, also)) {
		return
	}
	if verb == "watch" {
		a.watch(w, r, resource)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serve(w, verb, resource, name, a.selectorOf(r), body)
}

func (a *fakeAPI) serve(w http.ResponseWriter, verb, resource, name string, selects selector, body []byte) {
	switch resource {
	case "namespaces":
		reply(w, http.StatusOK, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(a.cluster)}})
	case "nodes", "metadata of nodes":
		reply(w, http.StatusOK, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-of-node", Labels: a.nodeLabels}})
	case "pods", "waiting pods":
		list := corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}}
		for _, pod := range a.pods {
			if selects(pod) {
				list.Items = append(list.Items, *pod)
			}
		}
		for i := range a.waiting {
			if selects(&a.waiting[i]) {
				list.Items = append(list.Items, a.waiting[i])
			}
		}
		reply(w, http.StatusOK, list)
	case "persistentvolumeclaims":
		if claim := a.claims[name]; claim != nil {
			reply(w, http.StatusOK, claim)
			return
		}
		refuse(w, apierrors.NewNotFound(corev1.Resource(resource), name))
	case "events":
		a.serveEvents(w, verb, name, body)
	case "persistentvolumes", "unlabelled persistentvolumes":
		if verb == "list" {
			a.listVolumes(w, selects)
			return
		}
		a.serveVolumes(w, verb, name, body)
	case "volumegroups":
		list := flexlvmv1.VolumeGroupList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}}
		for _, g := range a.groups {
			list.Items = append(list.Items, *g)
		}
		reply(w, http.StatusOK, list)
	case "volumediscoveries":
		a.serveDiscovery(w, name)
	case "nodestorages":
		a.serveStorage(w, verb, name, body)
	default:
		refuse(w, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name))
	}
}

func (a *fakeAPI) decode(body []byte) runtime.Object {
	o, _, err := a.codecs.UniversalDeserializer().Decode(body, nil, nil)
	require.NoError(a.t, err)
	return o
}

func (a *fakeAPI) serveEvents(w http.ResponseWriter, verb, name string, body []byte) {
	if verb == "patch" { // the event recorder counts a repeated event in the existing object
		for _, e := range a.events {
			if e.Name == name {
				a.repeated[e.Reason]++
				reply(w, http.StatusOK, e)
				return
			}
		}
		refuse(w, apierrors.NewNotFound(corev1.Resource("events"), name))
		return
	}
	e := a.decode(body).(*corev1.Event)
	a.events = append(a.events, *e)
	reply(w, http.StatusCreated, e)
}

func (a *fakeAPI) listVolumes(w http.ResponseWriter, selects selector) {
	list := corev1.PersistentVolumeList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}}
	for _, pv := range a.volumes {
		if selects(pv) {
			list.Items = append(list.Items, *pv)
		}
	}
	if a.readers != nil && selects(a.readers) {
		list.Items = append(list.Items, *a.readers)
	}
	reply(w, http.StatusOK, list)
}

func (a *fakeAPI) serveVolumes(w http.ResponseWriter, verb, name string, body []byte) {
	gr := corev1.Resource("persistentvolumes")
	pv := a.volumes[name]
	if a.readers != nil && a.readers.Name == name {
		pv = a.readers
	}
	if pv == nil {
		refuse(w, apierrors.NewNotFound(gr, name))
		return
	}
	switch verb {
	case "delete":
		p := a.decode(body).(*metav1.DeleteOptions).Preconditions
		if p == nil || *p.UID != pv.UID || *p.ResourceVersion != pv.ResourceVersion {
			refuse(w, apierrors.NewConflict(gr, name, fmt.Errorf("the preconditions do not hold")))
			return
		}
		if pv.DeletionTimestamp == nil {
			now := metav1.NewTime(time.Now())
			pv.DeletionTimestamp = &now
		}
		a.settle(pv)
	case "patch":
		var patch struct{ Metadata metav1.ObjectMeta }
		var annotated struct {
			Metadata struct{ Annotations map[string]*string }
		}
		require.NoError(a.t, json.Unmarshal(body, &patch))
		require.NoError(a.t, json.Unmarshal(body, &annotated))
		if patch.Metadata.UID != pv.UID || patch.Metadata.ResourceVersion != pv.ResourceVersion {
			refuse(w, apierrors.NewConflict(gr, name, fmt.Errorf("it has changed")))
			return
		}
		if changed := annotated.Metadata.Annotations; changed != nil {
			pv.Annotations = maps.Clone(pv.Annotations)
			for name, value := range changed {
				if delete(pv.Annotations, name); value != nil {
					pv.Annotations[name] = *value
				}
			}
		} else {
			pv.Finalizers = patch.Metadata.Finalizers
		}
		a.settle(pv)
	}
	reply(w, http.StatusOK, pv)
}

// settle deletes a PersistentVolume that is being deleted and has no finalizers left.
func (a *fakeAPI) settle(pv *corev1.PersistentVolume) {
	if pv.DeletionTimestamp != nil && len(pv.Finalizers) == 0 {
		delete(a.volumes, pv.Name)
		a.changed("DELETED", pv)
		return
	}
	a.changed("MODIFIED", pv)
}

func (a *fakeAPI) serveStorage(w http.ResponseWriter, verb, name string, body []byte) {
	gr := flexlvmv1.GroupVersion.WithResource("nodestorages").GroupResource()
	switch {
	case verb == "list":
		list := flexlvmv1.NodeStorageList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}}
		if a.storage != nil {
			list.Items = append(list.Items, *a.storage)
		}
		reply(w, http.StatusOK, list)
		return
	case verb == "post":
		if a.storage != nil {
			refuse(w, apierrors.NewAlreadyExists(gr, a.storage.Name))
			return
		}
		a.storage = a.decode(body).(*flexlvmv1.NodeStorage)
		a.storage.Status = flexlvmv1.NodeStorageStatus{}
		a.changed("ADDED", a.storage)
	case a.storage == nil:
		refuse(w, apierrors.NewNotFound(gr, name))
		return
	case verb == "put":
		next := a.decode(body).(*flexlvmv1.NodeStorage)
		if next.ResourceVersion != a.storage.ResourceVersion {
			refuse(w, apierrors.NewConflict(gr, name, fmt.Errorf("it has changed")))
			return
		}
		a.storage.Status = next.Status
		a.changed("MODIFIED", a.storage)
	}
	reply(w, http.StatusOK, a.storage)
}
