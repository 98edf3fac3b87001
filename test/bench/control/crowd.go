package control

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	etcd = "http://127.0.0.1:2379"
	// perTransaction is how many objects are stored in one transaction; etcd's default limit is 128.
	perTransaction = 100
)

// crowd creates each volumes on each of the nodes from..to-1, with their claims, in the state after the controller
// manager has bound them. It stores them in etcd directly: through the API server, half a million of each would
// take an hour.
func (b *bed) crowd(ctx context.Context, like *corev1.PersistentVolume, from, to, each int) error {
	store := seeder{
		client:  http.Client{Transport: &http.Transport{DialContext: b.cluster.Dial, MaxIdleConnsPerHost: clients}},
		encoder: protobuf.NewSerializer(scheme.Scheme, scheme.Scheme),
	}
	total := (to - from) * each
	return eachOf(clients, (total+perTransaction/2-1)/(perTransaction/2), func(i int) error {
		var objects []stored
		for n := i * perTransaction / 2; n < min(total, (i+1)*perTransaction/2); n++ {
			claim, volume := b.bound(like, from+n/each, n%each)
			objects = append(objects,
				stored{"/registry/persistentvolumeclaims/" + space + "/" + claim.Name, claim},
				stored{"/registry/persistentvolumes/" + volume.Name, volume})
		}
		return store.put(ctx, objects)
	})
}

// bound returns a claim and its volume on a node. number distinguishes the volumes of the node.
func (b *bed) bound(like *corev1.PersistentVolume, node, number int) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	uid := fmt.Sprintf("%08d-0000-4000-8000-%012d", node, number)
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim := &corev1.PersistentVolumeClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: space, Name: fmt.Sprintf("data-%05d-%03d", node, number), UID: types.UID(uid),
			CreationTimestamp: metav1.Now(), Finalizers: []string{"kubernetes.io/pvc-protection"},
			Annotations: map[string]string{
				annotationNode: nodeName(node), annotationProvisioner: like.Annotations["pv.kubernetes.io/provisioned-by"],
				"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
			},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &b.classes[0], VolumeMode: like.Spec.VolumeMode, VolumeName: "pvc-" + uid,
			AccessModes: like.Spec.AccessModes, Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: like.Spec.AccessModes, Capacity: size},
	}
	volume := volumeLike(like, claim.Spec.VolumeName, nodeName(node), claim)
	volume.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"}
	volume.UID, volume.CreationTimestamp = types.UID("1"+uid[1:]), metav1.Now()
	volume.Status.Phase = corev1.VolumeBound
	return claim, volume
}

// A stored object is an object with its key in etcd.
type stored struct {
	key    string
	object runtime.Object
}

// A seeder stores objects in etcd in the API server's format, through etcd's JSON gateway.
type seeder struct {
	client  http.Client
	encoder runtime.Encoder
}

func (s *seeder) put(ctx context.Context, objects []stored) error {
	type operation struct {
		RequestPut map[string]string `json:"request_put"`
	}
	var all struct {
		Success []operation `json:"success"`
	}
	for _, o := range objects {
		var content bytes.Buffer
		if err := s.encoder.Encode(o.object, &content); err != nil {
			return fmt.Errorf("encode %s: %w", o.key, err)
		}
		all.Success = append(all.Success, operation{map[string]string{
			"key": base64.StdEncoding.EncodeToString([]byte(o.key)), "value": base64.StdEncoding.EncodeToString(content.Bytes()),
		}})
	}
	body, err := json.Marshal(all)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, etcd+"/v3/kv/txn", bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return fmt.Errorf("store in etcd: %w", err)
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("store in etcd: %s: %s", response.Status, said)
	}
	return err
}
