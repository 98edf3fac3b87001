package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of everything in this package.
var GroupVersion = schema.GroupVersion{Group: "flexlvm.io", Version: "v1"}

// AddToScheme registers the types of this package with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &LocalVolume{}, &LocalVolumeList{}, &NodeStorage{}, &NodeStorageList{}, &VolumeDiscovery{}, &VolumeDiscoveryList{}, &VolumeGroup{}, &VolumeGroupList{}, &VolumeManager{}, &VolumeManagerList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
