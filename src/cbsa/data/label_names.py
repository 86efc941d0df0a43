"""Names of the classes of segmentation data sets, in the order of their labels."""


def _names(listed: str) -> tuple[str, ...]:
    return tuple(listed.split(","))


ADE20K = _names(
    "wall,building,sky,floor,tree,ceiling,road,bed,windowpane,grass,cabinet,sidewalk,person,earth,door,table,"
    "mountain,plant,curtain,chair,car,water,painting,sofa,shelf,house,sea,mirror,rug,field,armchair,seat,"
    "fence,desk,rock,wardrobe,lamp,bathtub,railing,cushion,base,box,column,signboard,chest of drawers,"
    "counter,sand,sink,skyscraper,fireplace,refrigerator,grandstand,path,stairs,runway,case,pool table,"
    "pillow,screen door,stairway,river,bridge,bookcase,blind,coffee table,toilet,flower,book,hill,bench,"
    "countertop,stove,palm,kitchen island,computer,swivel chair,boat,bar,arcade machine,hovel,bus,towel,"
    "light,truck,tower,chandelier,awning,streetlight,booth,television receiver,airplane,dirt track,apparel,"
    "pole,land,bannister,escalator,ottoman,bottle,buffet,poster,stage,van,ship,fountain,conveyer belt,canopy,"
    "washer,plaything,swimming pool,stool,barrel,basket,waterfall,tent,bag,minibike,cradle,oven,ball,food,"
    "step,tank,trade name,microwave,pot,animal,bicycle,lake,dishwasher,screen,blanket,sculpture,hood,sconce,"
    "vase,traffic light,tray,ashcan,fan,pier,crt screen,plate,monitor,bulletin board,shower,radiator,glass,"
    "clock,flag"
)
CITYSCAPES = _names(
    "road,sidewalk,building,wall,fence,pole,traffic light,traffic sign,vegetation,terrain,sky,person,rider,"
    "car,truck,bus,train,motorcycle,bicycle"
)
PASCAL_CONTEXT = _names(
    "aeroplane,bag,bed,bedclothes,bench,bicycle,bird,boat,book,bottle,building,bus,cabinet,car,cat,ceiling,"
    "chair,cloth,computer,cow,cup,curtain,dog,door,fence,floor,flower,food,grass,ground,horse,keyboard,light,"
    "motorbike,mountain,mouse,person,plate,platform,pottedplant,road,rock,sheep,shelves,sidewalk,sign,sky,"
    "snow,sofa,table,track,train,tree,truck,tvmonitor,wall,water,window,wood"
)
VOC = _names(
    "background,aeroplane,bicycle,bird,boat,bottle,bus,car,cat,chair,cow,diningtable,dog,horse,motorbike,"
    "person,pottedplant,sheep,sofa,train,tvmonitor"
)
CAMVID = _names("sky,building,pole,road,pavement,tree,sign_symbol,fence,car,pedestrian,bicyclist")
PETS = ("foreground", "background", "boundary")
